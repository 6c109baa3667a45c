"""Replay the runs of a session with the locks of its GPU: they hold it, and sleep.

    python lab/benchmarks/gate_replay.py SET [SCALE]

It prints the runs of each model with their seconds, and when its last test ends: in the session, and replayed. SCALE
(8): how much faster than the session. Tests begin in the order of the session, and what a test does besides its runs
takes no time.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections import defaultdict
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from fp8parity.records import manifest
from fp8parity.records.cell import CONTROL_RECIPE
from fp8parity.records.files import locked
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.training import hardware
from fp8parity.workload.presets import presets

CARD = hardware.GPU("gpu", 143_771 * 2**20)
"""The memory of an H200."""


class Held(NamedTuple):
    """A run, its seconds, and how it holds its GPU."""

    name: str
    seconds: float
    use: hardware.Use


def tests_of(made: manifest.Manifest, path: Path) -> list[tuple[str, list[Held]]]:
    """Return the model and runs of each test, in the order of the session."""
    runs = [r for r in load_records(path) if isinstance(r, Trajectory)]
    found: list[tuple[str, list[Held]]] = []
    for test in sorted((t for t in made.selected if t.begun is not None), key=lambda t: t.begun or 0.0):
        own = [r for r in runs if r.cell.id == test.cell]
        controls = {(r.cell.model, r.seed): r for r in runs if r.cell.recipe == CONTROL_RECIPE}
        pairs = [run for r in own for run in (controls[r.cell.model, r.seed], r)]
        held = [
            Held(f"{r.cell.id} {r.seed}", r.seconds or 0.0, hardware.of_run(presets()[r.cell.model])) for r in pairs
        ]
        found.append((own[0].cell.model, held))
    return found


def work(tests: list[tuple[str, list[Held]]], at: Synchronized[int], folder: Path, scale: float, ends: Path) -> None:
    """Take one test after the other, as a worker does, and write when each ends."""
    begun = time.time()
    while True:
        with at.get_lock():
            index, at.value = at.value, at.value + 1
        if index >= len(tests):
            return
        model, runs = tests[index]
        for run in runs:
            done = folder / run.name
            with locked(done.with_suffix(".lock")):
                if not done.exists():
                    with hardware.held(folder, CARD, run.use):
                        time.sleep(run.seconds / scale)
                    done.touch()
        (ends / f"{index} {model}").write_text(str((time.time() - begun) * scale))


def main(path: Path, scale: float = 8.0) -> None:
    """Print the runs of each model, and when its last test ends."""
    [made] = manifest.load([path])
    tests = tests_of(made, path)
    at = multiprocessing.Value("i", 0)
    with TemporaryDirectory() as temporary:
        folder, ends = Path(temporary) / "records", Path(temporary) / "ends"
        for one in (folder, ends):
            one.mkdir()
        given = tests, at, folder, scale, ends
        started = [multiprocessing.Process(target=work, args=given) for _ in range(made.workers)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        last: dict[str, float] = defaultdict(float)
        for file in ends.iterdir():
            model = file.name.partition(" ")[2]
            last[model] = max(last[model], float(file.read_text()))
    runs = {run.name: (model, run.seconds) for model, held in tests for run in held}
    order = sorted((t for t in made.selected if t.begun is not None), key=lambda t: t.begun or 0.0)
    for model, seconds in sorted(last.items(), key=lambda item: item[1]):
        own = [took for of, took in runs.values() if of == model]
        ended = max((t.begun or 0) + (t.seconds or 0) for t, (of, _) in zip(order, tests, strict=True) if of == model)
        text = f"the last test ends after {ended:.0f} s, here {seconds:.0f} s"
        print(f"{model}: {len(own)} runs, {sum(own):.0f} s; {text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
