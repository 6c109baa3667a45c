"""What two record sets hold: cells and seeds that one side lacks, several machines, and verdicts that turned."""

from __future__ import annotations

from functools import partial

import pytest
import two_sides
from fp8parity.judging.compare import compare
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.judging.verdict import Status, VerdictChange
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Probed
from two_sides import POLICY, change, compared


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


@pytest.mark.parametrize(("old", "new", "lacks"), [(5, 3, "NEW"), (3, 5, "OLD")])
def test_missing_seeds_are_listed_and_red(runs, old, new, lacks):
    found = compared(runs(seeds=old), runs("2.13.0", seeds=new))
    assert [(m.cell, m.items, m.missing_in) for m in found.missing] == [
        ("bf16-nano-native", ["seed3", "seed4"], lacks),
        ("te-current-nano-emulated", ["seed3", "seed4"], lacks),
    ]
    assert change(found).moved == "unchanged"
    assert found.code == 2


def test_a_missing_cell_is_listed_and_red_and_a_regression_outranks_it(runs, trajectory):
    more = [trajectory("te-block", s, 0.0, provenance=two_sides.provenance(trajectory)) for s in range(3)]
    found = compared(runs() + more, runs("2.13.0"))
    assert [m.text for m in found.missing] == ["te-block-nano-emulated seed0, seed1, seed2 (in NEW)"]
    assert found.code == 2
    assert "missing: te-block-nano-emulated" in found.sentence
    assert compared(runs() + more, runs("2.13.0", recipe=0.02)).code == 1


def test_with_nothing_in_common_nothing_is_compared(runs):
    old = [r for r in runs() if r.cell.recipe == "bf16"]
    new = [r for r in runs("2.13.0", recipe=0.02) if r.cell.recipe != "bf16"]
    nothing = compared(old, new)
    assert (nothing.code, nothing.changes) == (2, [])
    assert nothing.sentence.startswith("Nothing could be compared")


def test_machines_are_paired_by_device(runs):
    old = runs(device="EPYC") + runs(device="H200", recipe=0.001)
    new = runs("2.13.0", device="H200", recipe=0.021) + runs("2.13.0", device="EPYC")
    found = compared(old, new)
    by_machine = {c.machine: c.moved for c in found.changes if c.cell.recipe == "te-current" and c.what == "loss"}
    assert by_machine == {"EPYC": "unchanged", "H200": "recipe moved"}
    assert not found.missing


def test_two_devices_that_are_left_over_are_a_machine_that_changed(runs):
    other = compared(runs(device="H100"), runs("2.13.0", device="H200"))
    assert other.machines == ["H100 -> H200"]
    assert "device H100 -> H200" in other.sentence
    assert other.code == 0


@pytest.mark.parametrize(("device", "name"), [("H200", "H200"), ("B200", "H200")])
def test_a_cell_that_one_of_two_machines_lacks_is_named_with_its_device(runs, device, name):
    """A machine that changed has the name that it has in OLD."""
    old = runs(device="EPYC") + runs(device="H200")
    new = runs("2.13.0", device="EPYC") + [r for r in runs("2.13.0", device=device) if r.cell.is_control]
    assert [m.text for m in compared(old, new).missing] == [
        f"te-current-nano-emulated on {name} seed0, seed1, seed2 (in NEW)"
    ]
    assert [m.text for m in compared(new[:6], old[:5]).missing] == ["te-current-nano-emulated seed2 (in NEW)"]


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


def test_a_verdict_that_turned_red_is_no_nothing_moved(runs, trajectory):
    """The optimizer held another beta. No loss shows it, and the verdict does."""
    golden = loss_goldens.from_runs([trajectory(seed=s) for s in range(8)], [])
    stored = Goldens(loss={("nano", "topics"): golden})
    other = {"hyperparameters": {"beta1": (0.9, 0.95)}}
    found = compare(runs(), runs("2.13.0", **other), stored, POLICY)
    assert {v.new for v in found.verdicts} == {"fail"} and all(v.turned_red for v in found.verdicts)
    assert found.code == 2
    assert found.sentence.startswith("Cannot say, because the goldens refuse NEW and not OLD: ")
    assert "te-current-nano-emulated loss parity: pass -> fail" in found.sentence
    gain = compare(runs(), runs("2.13.0", recipe=-0.02, **other), stored, POLICY)
    assert gain.code == 2 and "better" in gain.sentence and "; the goldens refuse NEW and not OLD: " in gain.sentence
    mended = compare(runs(**other), runs("2.13.0"), stored, POLICY)
    assert mended.code == 0 and not any(v.turned_red for v in mended.verdicts)


@pytest.mark.parametrize(
    ("old", "new", "red"),
    [
        ("pass", "fail", True),
        ("pass", "inconclusive", True),
        ("known", "no-golden", True),
        ("inconclusive", "fail", True),
        ("no-golden", "drift", True),
        ("stale", "error", True),
        ("inconclusive", "no-golden", False),
        ("fail", "drift", False),
        ("fail", "inconclusive", False),
        ("inconclusive", "pass", False),
    ],
)
def test_a_verdict_that_decided_nothing_does_not_hide_a_red_one(old: Status, new: Status, red):
    cell = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
    assert VerdictChange(cell=cell, check="loss parity", old=old, new=new, why="").turned_red == red


@pytest.mark.parametrize(
    ("side", "effect", "code"),
    [("NEW", "regression", 1), ("OLD", "gain", 0), ("neither", "none", 0), ("both", "none", 0)],
)
def test_fp8_that_is_lost_on_the_way_is_seen_without_a_golden(runs, side, effect, code):
    def probed(lost: bool) -> dict[str, list[Probed]]:
        values = (10, 25.0), (99, float("inf") if lost else 23.0)
        return {"probes": [Probed(step=step, sqnr=sqnr, worst=sqnr, where="a") for step, sqnr in values]}

    found = compared(runs(**probed(side in ("OLD", "both"))), runs("2.13.0", **probed(side in ("NEW", "both"))))
    assert (change(found).effect, found.code) == (effect, code)
    if side in ("OLD", "NEW"):
        assert (
            change(found).moved,
            change(found).notes[0].startswith(f"in {side}: the recipe's arithmetic changed"),
        ) == ("recipe moved", True)
