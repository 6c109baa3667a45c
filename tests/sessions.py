"""A runner whose records are judged at once, as the fixture ``parity`` does it, and short names for cells."""

from __future__ import annotations

import datetime
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from fp8parity import recipes
from fp8parity.checks import RunSpec, attention, short_run, state
from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.judging.verdict import Verdict
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurements
from fp8parity.runner import Runner, Settings
from fp8parity.training.hardware import Hardware
from fp8parity.workload.dimensions import Experts
from fp8parity.workload.presets import presets
from trajectories import NANO

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "golden"
DAY = datetime.date(2026, 11, 21)
"""The day of the tests: known failures end, what is tested stays."""


def cell(recipe: str, execution: str = "emulated", model: str = "tiny") -> Cell:
    return Cell(model=model, recipe=recipe, execution=Execution(execution), corpus="topics")


class Session(Runner):
    """The project's own goldens and policy."""

    def numerics(self, check: str, of: Cell, *, partial: bool = False) -> Verdict:
        """The verdict on a check that is made now. A recipe that a test has changed is judged under its own name.
        ``partial``: some of its numbers are enough."""
        named = of.model_copy(update={"recipe": recipes.get(of.recipe).name})
        return verdict(self.measure(check, of).model_copy(update={"cell": named, "partial": partial}))

    def subject(self, recipe: str, execution: str = "emulated", model: str = "nano") -> RunSpec:
        return self.spec(cell(recipe, execution, model))


BRIEF = replace(short_run.PROBE, length=64)
"""Batches of half of the tokens."""


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Let short runs take a quarter of the tokens and 3 of 4 steps, let a module be used 4 times and not 64, and let ``attention`` take
    an eighth of the tokens and one shape, for its reference in FP64. For tests that compare such numbers with each other; ``test_stress`` looks at all uses."""
    patch.setattr(short_run, "PROBE", replace(short_run.PROBE, rows=2, length=64))
    for module in (short_run, state):
        patch.setattr(module, "STEPS", 3)
    patch.setattr(state, "USES", 4)
    patch.setattr(attention, "SHAPE", replace(attention.SHAPE, length=64))
    patch.setattr(attention, "CASES", ())


def on_cpu(records: Path) -> Session:
    """A session on the CPU that keeps its records in a folder."""
    mixed = replace(NANO, model=replace(NANO.model, name="nano-moe", experts=Experts(4)))
    return Session(
        Settings(records=records), Hardware("cpu", "cpu", None), "test", presets() | {p.name: p for p in (NANO, mixed)}
    )


@cache
def stored() -> tuple[Goldens, Policy]:
    """The project's own goldens and policy. Nothing in them changes, so they are read once."""
    return references.load(GOLDEN), policy.load(GOLDEN, DAY)


def verdict(record: Measurements, folder: Path = GOLDEN) -> Verdict:
    """The verdict on one numerics record."""
    [evaluation] = evaluate(
        [record], *(stored() if folder == GOLDEN else (references.load(folder), policy.load(folder, DAY)))
    )
    [found] = evaluation.verdicts
    return found


@cache
def measurements(name: str) -> list[Measurements]:
    """The numbers of a committed set. Several modules read the same set, some of them while pytest collects."""
    return [r for r in sets.load([GOLDEN / "records" / f"{name}.zip"]) if isinstance(r, Measurements)]


def measured_in(name: str, cell: str, check: str) -> Measurements:
    """The record of a check in a committed set."""
    return next(r for r in measurements(name) if (r.cell.id, r.check) == (cell, check))
