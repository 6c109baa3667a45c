"""Several processes that work on the same files at once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import timings
import trajectories
from fp8parity.judging import references
from fp8parity.records import manifest, sets
from fp8parity.records.cell import Cell
from fp8parity.records.schema import AnyRecord, Measurement, Measurements
from fp8parity.records.storage import load_record, name_of, write_json

from enduring.process import Done, Work, command, run, together
from enduring.project import Writer, leftovers, must, state
from enduring.trial import Kinds, Outcome, Result, fault, lost
from enduring.writers import RECORD

WHOLE = Result(Outcome.WHOLE)
GREEN = Writer(command("judge", "records"), green=True)
WORDS = "fp8parity: waiting for "
"""How the only line begins that a process may print that ends well: it says for whom it waits."""


def _failed(done: Sequence[Done]) -> Result | None:
    """The result if a process crashed or did not end with 0."""
    for d in done:
        crash = fault(d)
        if crash or d.code != 0 or not all(line.startswith(WORDS) for line in d.err.splitlines()):
            return crash or lost(f"exit status {d.code}: {d.err.strip()[-160:]}")
    return None


def _goldens(done: Sequence[Done], folder: Path) -> references.Goldens | Result:
    """The goldens that the processes left, or the result if one of them failed, or if their files do not belong together."""
    failed = _failed(done)
    if failed:
        return failed
    try:
        return references.load(folder / "golden")
    except ValueError as error:
        return lost(str(error).replace(f"{folder}/", ""))


def _set(folder: Path, record: AnyRecord) -> None:
    """A set of one record, which may become a golden."""
    write_json(folder / name_of(record), record)
    session = manifest.Selected(
        cell=record.cell.id, test="test", outcome="passed", checks=["test"], records=[name_of(record)]
    )
    made = manifest.Manifest(
        session=record.session,
        options=[],
        started="a",
        ended="b",
        status="ok",
        provenance=record.provenance,
        selected=[session],
    )
    manifest.write(folder, made)


def _later(work: Work, chance: Random) -> Work:
    """The work after a short time by chance."""
    seconds = chance.uniform(0, 0.03)

    def wait() -> int:
        time.sleep(seconds)
        return work()

    return wait


def _golden_store(chance: Random, scratch: Path) -> Result:
    """Step times of several models of one GPU and the spreads of losses are stored at once: each of them is in the folder."""
    folder = GREEN.fresh(scratch)
    models = [f"model{i}" for i in range(chance.randint(1, 3))]
    for model in models:
        cell = timings.CELL.model_copy(update={"model": model})
        _set(folder / model, timings.made(cell=cell, provenance=trajectories.PROVENANCE))
    works = [_later(command("golden", "store", name), chance) for name in [*models, "records"]]
    left = _goldens(together(works, folder), folder)
    if isinstance(left, Result):
        return left
    gone = {("d", model, "training-step") for model in models} - left.throughput.keys()
    return lost(f"{len(gone)} of {len(works)} stored goldens are gone") if gone else _clean(folder)


def _recipes_of_one_model(chance: Random, scratch: Path) -> Result:
    """Step times of several recipes go into one file: each of them is in it."""
    folder = GREEN.fresh(scratch)
    recipes = ["te-delayed", "te-block", "te-mxfp8"][: chance.randint(2, 3)]
    for recipe in recipes:
        cell = timings.CELL.model_copy(update={"recipe": recipe})
        _set(folder / recipe, timings.made(cell=cell, provenance=trajectories.PROVENANCE))
    failed = _failed(together([_later(command("golden", "store", recipe), chance) for recipe in recipes], folder))
    text = "".join(p.read_text() for p in (folder / "golden" / "throughput").rglob("*.json"))
    gone = [r for r in recipes if f'"{r}' not in text]
    return failed or (lost(f"the step times of {', '.join(gone)} are gone") if gone else _clean(folder))


def _bounds(chance: Random, scratch: Path) -> Result:
    """Numbers of several recipes are written into one table: each of them is in it."""
    folder = GREEN.fresh(scratch)
    recipes = ["te-delayed", "te-block", "te-mxfp8", "te-nvfp4"][: chance.randint(2, 4)]
    for recipe in recipes:
        cell = Cell(model="tiny", recipe=recipe, execution=timings.CELL.execution, corpus="topics")
        values = [Measurement(metric="sqnr", where="x", value=30.0)]
        _set(
            folder / recipe,
            Measurements(check="canary", cell=cell, values=values, provenance=trajectories.PROVENANCE, session=recipe),
        )
    left = _goldens(
        together([_later(command("bounds", recipe, "--write"), chance) for recipe in recipes], folder), folder
    )
    if isinstance(left, Result):
        return left
    kept = {key.recipe for table in left.numbers.tables.values() for key in table}
    gone = set(recipes) - kept
    return lost(f"the numbers of {', '.join(sorted(gone))} are gone") if gone else _clean(folder)


def _clean(folder: Path) -> Result:
    left = leftovers(folder)
    return lost(f"{left[0]} is left") if left else WHOLE


def _merge(target: str) -> Kinds:
    def trial(chance: Random, scratch: Path) -> Result:
        """Several sets are merged into one target: one wins and is whole, the others end with 2 and name the target."""
        folder, count = GREEN.fresh(scratch), chance.randint(2, 4)
        for i in range(count):
            for seed in range(3):
                made = trajectories.made(seed=seed, session=f"s{i}", final_weights=f"of {i}")
                write_json(folder / f"set{i}" / name_of(made), made)
        done = together([_later(command("merge", target, f"set{i}"), chance) for i in range(count)], folder)
        winners = [i for i, d in enumerate(done) if d.code == 0]
        crash = next((found for d in done if (found := fault(d))), None)
        if crash or len(winners) != 1:
            return crash or lost(f"{len(winners)} merges into one target say that they are done")
        if any(
            d.code != 2 or target not in d.err or len(d.err.splitlines()) != 1
            for i, d in enumerate(done)
            if i not in winners
        ):
            return lost("a merge that lost did not say so")
        whole = sets.load([folder / target]) == sets.load([folder / f"set{winners[0]}"])
        return _clean(folder) if whole else lost("the target does not hold the set of the merge that won")

    return {f"merges into one {'.zip file' if target.endswith('.zip') else 'folder'}": trial}


def _records_of_one_cell(chance: Random, scratch: Path) -> Result:
    """Several processes write the record of one cell many times, and one reads it: it always reads a whole one."""
    folder = GREEN.fresh(scratch)

    def write(i: int) -> Work:
        def work() -> int:
            made = load_record(RECORD)
            for turn in range(20):
                write_json(
                    RECORD,
                    made.model_copy(update={"seconds": float(i * 100 + turn), "session": f"s{i}" * (1 + 500 * i)}),
                )
            return 0

        return work

    def read() -> int:
        return 0 if all(load_record(RECORD).session for _ in range(60)) else 1

    writers = [_later(write(i), chance) for i in range(1, chance.randint(2, 3) + 1)]
    failed = _failed(together([*writers, read], folder))
    last = load_record(folder / RECORD)
    ended = getattr(last, "seconds", 0) % 100 == 19
    return failed or (_clean(folder) if ended else lost("the last record of no writer is there"))


def _judge_beside_a_writer(chance: Random, scratch: Path) -> Result:
    """``judge`` reads a set while a process writes its records again and again: it is green, as before and after."""
    folder = GREEN.fresh(scratch)

    def rewrite() -> int:
        paths = [p for p in sorted(Path("records").glob("*.json")) if not p.name.startswith("manifest-")]
        for path in chance.sample(paths * 6, len(paths) * 6):
            write_json(path, load_record(path))
        return 0

    judging: Work = command("judge", "records", "--report", "out.md")
    failed = _failed(together([rewrite, *(_later(judging, chance) for _ in range(chance.randint(1, 3)))], folder))
    if failed:
        return failed
    before = state(folder)["out.md"]
    must(run(judging, folder))
    return _clean(folder) if state(folder)["out.md"] == before else lost("the report beside a writer is another one")


KINDS: Kinds = {
    "golden store of several models": _golden_store,
    "golden store of several recipes": _recipes_of_one_model,
    "bounds --write of several recipes": _bounds,
    **_merge("out"),
    **_merge("out.zip"),
    "records of one cell": _records_of_one_cell,
    "judge beside a writer": _judge_beside_a_writer,
}
