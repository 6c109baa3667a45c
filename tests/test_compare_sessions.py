"""Sets that hold BF16 runs of several sessions: each recipe stays with the BF16 of its own, and no session's BF16 is left out."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import two_sides
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import machines, merge
from two_sides import change, compared


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


def of(session: str, records: Sequence[Trajectory], recipe: str = "te-current") -> list[Trajectory]:
    """The records as those of a session, their recipe under another name."""
    renamed = [
        r if r.cell.is_control else r.model_copy(update={"cell": r.cell.model_copy(update={"recipe": recipe})})
        for r in records
    ]
    return [r.model_copy(update={"session": session}) for r in renamed]


def bf16(session: str, records: Sequence[Trajectory]) -> list[Trajectory]:
    return of(session, [r for r in records if r.cell.is_control])


def merged(*sessions: Sequence[Trajectory]) -> list[Trajectory]:
    found = merge((Path(f"{i}/{r.cell.id}-{r.seed}"), r) for i, records in enumerate(sessions) for r in records)
    return [r for r in found if isinstance(r, Trajectory)]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_recipe_stays_with_its_own_bf16_if_that_equals_another_sessions(runs, order):
    """A and B trained the same BF16, C another one. B's was dropped as a copy of A's, and its recipe was compared with C's."""
    new = runs("2.13.0")
    sessions = [bf16("a", new), of("b", new, "te-block"), bf16("c", runs("2.13.0", control=0.02))]
    records = merged(*(sessions[i] for i in order))
    [machine] = machines(records)
    for run in (r for r in records if not r.cell.is_control):
        control = machine.control(run)
        assert control is not None and control.session == "b"
    found = compared(merged(of("o", runs(), "te-block")), records)
    assert change(found, "te-block").moved == "unchanged"
    assert merged(records, *sessions) == records


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("control", "effect", "code"), [(0.02, "regression", 1), (-0.02, "gain", 0), (0.0, "none", 0)])
def test_the_bf16_of_every_session_is_compared(runs, order, control, effect, code):
    """Only the first session of a seed was, so a session that trained BF16 alone was never looked at."""
    sessions = [of("a", runs("2.13.0")), bf16("b", runs("2.13.0", control=control))]
    found = compared(runs(), merged(*sessions[::order]))
    made = change(found, "bf16")
    assert (made.effect, found.code) == (effect, code)
    assert [c.what for c in found.changes if c.cell.is_control] == ["loss"]
    assert (made.notes == ["BF16 of session 2.12.0 EPYC in OLD and of session b in NEW"]) == (control != 0)
