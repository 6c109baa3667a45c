"""What two record sets hold: cells, seeds and sessions that one side lacks or has new, several machines."""

from __future__ import annotations

import pytest
import two_sides
from fp8parity.judging.compare import compare
from fp8parity.judging.completeness import too_old
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.judging.verdict import Status, VerdictChange
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Selected
from two_sides import POLICY, compared, session


def test_with_nothing_in_common_nothing_is_compared(runs):
    old = [r for r in runs() if r.cell.recipe == "bf16"]
    new = [r for r in runs("2.13.0", recipe=0.02) if r.cell.recipe != "bf16"]
    nothing = compared(old, new)
    assert (nothing.code, nothing.changes) == (2, [])
    assert nothing.sentence.startswith("Nothing could be compared, so run the same cells on both sides")


def test_machines_are_paired_by_device(runs):
    old = runs(device="EPYC") + runs(device="H200", recipe=0.001)
    new = runs("2.13.0", device="H200", recipe=0.021) + runs("2.13.0", device="EPYC")
    found = compared(old, new)
    by_machine = {c.machine: c.moved for c in found.changes if c.cell.recipe == "te-current" and c.what == "loss"}
    assert by_machine == {"EPYC": "unchanged", "H200": "recipe changed"}
    assert not found.missing


def test_two_devices_that_are_left_over_are_a_machine_that_changed(runs):
    other = compared(runs(device="H100"), runs("2.13.0", device="H200"))
    assert other.machines == ["H100 -> H200"]
    assert "device H100 -> H200" in other.sentence
    assert other.code == 0


@pytest.mark.parametrize("side", ["OLD", "NEW"])
def test_one_device_in_two_environments_is_no_side(runs, trajectory, side):
    """The names of what differs stand in the sentence, also of a package that one of the two lacks."""
    first, second = ({"torch": "2.13.0", "apex": "1", "same": "1"}, {"torch": "2.14.0", "flash": "2", "same": "1"})
    made = two_sides.provenance(trajectory)
    two = [r for p in (first, second) for r in runs(provenance=made.model_copy(update={"packages": p}))]
    with pytest.raises(
        ValueError,
        match=f"^{side} holds EPYC with more than one apex, torch, flash; put each of them into its own set$",
    ):
        compared(*((two, runs()) if side == "OLD" else (runs(), two)))


def test_a_verdict_that_newly_red_is_no_nothing_moved(runs, trajectory):
    """The optimizer held another beta. No loss shows it, and the verdict does."""
    golden = loss_goldens.from_runs([trajectory(seed=s) for s in range(8)], [])
    stored = Goldens(loss={("nano", "topics"): golden})
    other = {"hyperparameters": {"beta1": (0.9, 0.95)}}
    found = compare(runs(), runs("2.13.0", **other), stored, POLICY)
    assert {v.new for v in found.verdicts} == {"fail"} and all(v.newly_red for v in found.verdicts)
    assert found.code == 1 and found.sentence.startswith("BF16 changed: ")
    gain = compare(runs(), runs("2.13.0", recipe=-0.02, **other), stored, POLICY)
    assert gain.code == 1
    bare = compare(runs(), runs("2.13.0", inventory=[]), stored, POLICY)
    assert bare.code == 2 and bare.sentence.startswith("Cannot say: ")
    assert "the goldens refuse NEW and not OLD: te-current-nano-emulated loss parity: pass -> error" in bare.sentence
    mended = compare(runs(**other), runs("2.13.0"), stored, POLICY)
    assert mended.code == 0 and not any(v.newly_red for v in mended.verdicts)


@pytest.mark.parametrize(
    ("old", "new", "red"),
    [
        ("pass", "fail", True),
        ("inconclusive", "fail", True),
        ("stale", "error", True),
        ("inconclusive", "no-golden", False),
        ("fail", "drift", False),
        ("inconclusive", "pass", False),
    ],
)
def test_a_verdict_that_decided_nothing_does_not_hide_a_red_one(old: Status, new: Status, red):
    cell = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
    assert VerdictChange(cell=cell, check="loss parity", old=old, new=new, why="").newly_red == red


CELL = "te-block-nano-emulated"
REASON = "Skipped: needs torchao 0.18 or later; 0.17.0 is installed"


@pytest.fixture
def more(trajectory):
    """The runs of a cell that NEW alone holds."""
    return [trajectory("te-block", s, 0.0, provenance=two_sides.provenance(trajectory, "2.13.0")) for s in range(3)]


def skipped(reason: str = REASON, test: str = "test_gemm") -> Selected:
    return Selected(cell=CELL, test=test, outcome="skipped", reason=reason)


def test_what_a_version_cannot_run_is_new_and_green(runs, more):
    found = compare(runs(), [*runs("2.13.0"), *more], Goldens(), POLICY, {CELL: "torchao 0.18 or later"})
    assert (found.code, found.missing) == (0, [])
    assert [m.text for m in found.added] == [f"{CELL} (it needs torchao 0.18 or later)"]
    assert found.sentence.startswith("No change beyond tolerance: ")
    assert f"; new: {CELL} (it needs torchao 0.18 or later) (" in found.sentence


def test_without_that_reason_it_is_missing_and_the_first_words_say_it(runs, more):
    found = compare(runs(), [*runs("2.13.0"), *more], Goldens(), POLICY)
    assert (found.code, found.added) == (2, [])
    assert found.sentence.startswith("Cannot say, because one side lacks cells. What both hold is inside its margins: ")
    assert f"; missing: {CELL} seed0, seed1, seed2 (in OLD)" in found.sentence


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        ([skipped(), skipped(test="test_state")], {CELL: "torchao 0.18 or later"}),
        ([skipped(), Selected(cell=CELL, test="test_state", outcome="failed")], {}),
        ([skipped(), skipped("needs a GPU of sm_90; this machine has none")], {}),
        ([skipped("needs the package torchao, which is not installed")], {}),
        ([Selected(cell=CELL, test="test_gemm", outcome="passed", reason=REASON)], {}),
    ],
    ids=["all", "one failed", "another reason", "not installed", "ran"],
)
def test_only_a_cell_of_which_every_test_was_skipped_for_its_version_counts(trajectory, selected, found):
    assert too_old([session(trajectory, *selected)]) == found


@pytest.mark.parametrize(("old", "new", "lacks"), [(3, 5, "OLD"), (5, 3, "NEW")])
def test_the_seeds_of_a_further_look_are_not_missing(runs, old, new, lacks):
    """One side decided with the three seeds of its first look, and its manifests say that it lost nothing."""
    sides = runs(seeds=old), runs("2.13.0", seeds=new)
    found = compare(*sides, Goldens(), POLICY, complete=["OLD", "NEW"])
    assert (found.code, found.missing) == (0, [])
    assert [m.text for m in found.added] == [
        f"bf16-nano-native seed3, seed4 ({lacks} decided without)",
        f"te-current-nano-emulated seed3, seed4 ({lacks} decided without)",
    ]
    assert f"; fewer seeds: bf16-nano-native seed3, seed4 ({lacks} decided without)" in found.sentence
    assert compare(*sides, Goldens(), POLICY, complete=["NEW" if lacks == "OLD" else "OLD"]).code == 2, (
        "that side may have lost them"
    )


def test_what_new_lost_is_missing_whatever_old_needed(runs, trajectory):
    more = [trajectory("te-block", s, 0.0, provenance=two_sides.provenance(trajectory)) for s in range(3)]
    found = compare([*runs(), *more], runs("2.13.0"), Goldens(), POLICY, {CELL: "torchao 0.18 or later"})
    assert (found.code, found.added, [m.missing_in for m in found.missing]) == (2, [], ["NEW"])
