"""Replay the runs of a session with the locks of its GPU: they hold it, and sleep.

    python lab/benchmarks/gate_replay.py SET [SCALE]

It prints when the last test of each model ends, in seconds of the session. SCALE (8): how much faster than the session.
Tests begin in the order of the session, and what a test does besides its runs takes no time.
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


def tests_of(path: Path) -> tuple[int, list[tuple[str, list[Held]]]]:
    """Return the workers of a session, and the model and runs of each test in order."""
    [made] = manifest.load([path])
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
    return made.workers, found


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
    """Print when the last test of each model ends."""
    workers, tests = tests_of(path)
    at = multiprocessing.Value("i", 0)
    with TemporaryDirectory() as made:
        folder, ends = Path(made) / "records", Path(made) / "ends"
        for one in (folder, ends):
            one.mkdir()
        started = [multiprocessing.Process(target=work, args=(tests, at, folder, scale, ends)) for _ in range(workers)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        last: dict[str, float] = defaultdict(float)
        for file in ends.iterdir():
            model = file.name.partition(" ")[2]
            last[model] = max(last[model], float(file.read_text()))
    print(", ".join(f"{model} {seconds:.0f} s" for model, seconds in last.items()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(float, sys.argv[2:]))
