"""The GEMMs of two sets: what moved, framework or recipe, and what cannot be compared."""

from __future__ import annotations

import pytest
import reports
from fp8parity.judging.compare import times
from fp8parity.judging.policy import Policy
from fp8parity.records.gemms import GemmTimes
from fp8parity.records.sets import machines
from gemm_records import ROW, changed, made, watched
from sessions import GOLDEN

RULES = Policy(path=GOLDEN, gemm=(ROW,))
LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}


def compared(a: GemmTimes, b: GemmTimes):
    ((old,), (new,)) = machines([a]), machines([b])
    return times.changes(old, new, RULES)


def slower(record: GemmTimes, factor: float) -> GemmTimes:
    """Both sides take ``factor`` times as long."""
    times = ("bf16_seconds", "recipe_seconds")
    found = [g.model_copy(update={k: [s * factor for s in getattr(g, k)] for k in times}) for g in record.gemms]
    return record.model_copy(update={"gemms": found})


@pytest.mark.parametrize(
    ("new", "moved", "effect"),
    [
        (made(), "noise", "none"),
        (made(training=1.6 * 1.02), "noise", "none"),
        (made(training=1.6 * 0.9), "recipe moved", "regression"),
        (made(training=1.6 * 1.1), "recipe moved", "gain"),
        (slower(made(), 1.2), "framework moved", "regression"),
        (slower(made(), 0.8), "framework moved", "gain"),
        (slower(made(training=1.4), 1.2), "both moved", "regression"),
        (made(watch=watched(busy_before=50)), "cannot say", "unknown"),
        (changed(made(), "o dgrad training", **LOST), "cannot say", "unknown"),
        (made(provenance=reports.provenance(device="Another")), "shown", "none"),
    ],
)
def test_what_moved(new, moved, effect):
    kernel, training = compared(made(), new)
    assert (training.moved, training.effect) == (moved, effect)
    assert (kernel.what, training.what) == ("GEMM throughput, kernel", "GEMM throughput, training")
    assert training.old == "1.600x BF16 [1.596, 1.604]"


def test_a_disturbed_side_is_named():
    for pair, side in (
        ((made(watch=watched(busy_before=50)), made()), "OLD"),
        ((made(), made(watch=watched(busy_before=50))), "NEW"),
    ):
        assert [note.partition(":")[0] for note in compared(*pair)[0].notes] == [side]


def without_o(record: GemmTimes) -> GemmTimes:
    return record.model_copy(update={"gemms": [g for g in record.gemms if g.linear != "o"]})


def larger_down(record: GemmTimes) -> GemmTimes:
    wider = [g.model_copy(update={"k": g.k * 2}) if g.linear == "down" else g for g in record.gemms]
    return record.model_copy(update={"gemms": wider})


@pytest.mark.parametrize(
    ("other", "linear"), [(without_o, "o"), (larger_down, "down"), (lambda r: larger_down(without_o(r)), "down, o")]
)
def test_sums_of_other_linears_are_not_compared(other, linear):
    """A layer without one of its linears, or with a larger one, is another layer."""
    for pair in ((made(), other(made())), (other(made()), made())):
        for found in compared(*pair):
            assert (found.moved, found.effect) == ("cannot say", "unknown")
            assert found.notes == [f"OLD and NEW timed other linears: {linear}"]


@pytest.mark.parametrize("side", ["OLD", "NEW"])
@pytest.mark.parametrize(
    ("left", "why"),
    [
        (lambda g: g.mode == "kernel", "down dgrad is missing"),
        (lambda g: g.mode == "kernel" or g.place != "o dgrad training", "o dgrad is missing"),
    ],
)
def test_a_sum_that_lacks_a_gemm_is_undecided_and_the_others_are_compared(left, why, side):
    """Nothing failed: the record holds no such GEMM."""
    less = made(gemms=[g for g in made().gemms if left(g)])
    kernel, training = compared(*((less, made()) if side == "OLD" else (made(), less)))
    assert (kernel.moved, kernel.notes) == ("noise", [])
    assert (training.moved, training.effect, training.notes) == ("cannot say", "unknown", [f"{side}: {why}"])
    assert (training.old if side == "OLD" else training.new) == "no sum"
