"""Two runs on one axis: which points both have, what is refused, and what shows that they are a pair."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from curves import both, noisy, pairs, run
from fp8parity.judging.pair.aligned import PairOptions, align
from fp8parity.judging.pair.pairing import check_pair, find_copies


def test_points_are_those_with_two_finite_losses():
    first, second = [2.0, 3.0, math.nan, 4.0, 5.0, 8.0], [4.0, 3.0, 3.0, math.inf, 10.0]
    pair = align(run(first), run(second, "fp8"))
    assert (pair.at.tolist(), pair.reference.tolist(), pair.candidate.tolist()) == ([1, 2, 5], [2, 3, 5], [4, 3, 10])
    assert pair.gap.tolist() == [1, 0, 1]
    assert [pair.place(i) for i in range(3)] == ["step 1", "step 2", "step 5"]
    assert align(run(second), run(first, "fp8")).reference.tolist() == [4, 3, 10]
    short = align(run(noisy(40)), run(noisy(30), "fp8"), PairOptions(until=20))
    assert short.at.tolist() == list(range(1, 21))


@pytest.mark.parametrize(
    ("points", "share", "tail"),
    [(400, 0.2, 80), (103, 0.2, 21), (102, 0.2, 20), (40, 0.2, 20), (39, 0.2, 19), (30, 0.5, 15)],
)
def test_tail_is_a_share_and_twenty_points_of_half_a_run(points, share, tail):
    assert align(*both(noisy(points)), PairOptions(tail=share)).tail == tail


SHORT = {"points": list(range(1, 39)), "loss": [2.0] * 38}
REFUSED = [
    ({}, {"axis": "samples"}, "the first counts steps, the second samples"),
    ({}, {"points": list(range(10, 410, 10))}, "the first is logged every 1 steps, the second every 10 steps"),
    ({}, SHORT, "the first ends at step 40, the second at 38; --until 38 judges"),
    (SHORT, {}, "the first ends at step 38, the second at 40; --until 38 judges"),
    ({"loss": [math.nan] * 40}, {}, "they share no point with a finite loss"),
    ({"loss": [2.0] * 39 + [0.0]}, {}, "a loss is not positive"),
    ({}, {"loss": [2.0] * 39 + [-1.0]}, "a loss is not positive"),
]


@pytest.mark.parametrize(("bf16", "fp8", "says"), REFUSED)
def test_runs_that_share_no_axis_are_refused(bf16, fp8, says):
    with pytest.raises(ValueError, match=f"^{re.escape(f'bf16 and fp8: {says}')}"):
        align(run([2.0] * 40, **bf16), run([2.0] * 40, "fp8", **fp8))


TOKENS = {"batch": [8.0] * 100, "batch_unit": "tokens"}
SCHEDULES = [
    ({}, {}, "pass", "learning rates not logged; tokens or samples a step not logged"),
    ({"learning_rate": [1.0] * 100, **TOKENS}, None, "pass", "learning rates equal; tokens or samples a step equal"),
    (TOKENS, {**TOKENS, "batch_unit": "samples"}, "pass", "not comparable (tokens and samples)"),
    (
        {"learning_rate": [1.0] * 100},
        {"learning_rate": [1.0] * 98 + [0.9985] * 2},
        "inconclusive",
        "learning rates differ from step 99 on (1 and 0.9985)",
    ),
    (TOKENS, {**TOKENS, "batch": [8.0] * 97 + [9.0] * 3}, "inconclusive", "a step differ from step 98 on (8 and 9)"),
]


@pytest.mark.parametrize(("bf16", "fp8", "status", "says"), SCHEDULES)
def test_pair_has_the_same_schedule_and_batches(bf16, fp8, status, says):
    """A thousandth is the printed digits. Points that one run lacks are not compared."""
    found = check_pair(align(run(noisy(100), **bf16), run(noisy(100), "fp8", **(bf16 if fp8 is None else fp8))))
    assert (found.status, found.decisive) == (status, status != "pass") and says in found.text


@pytest.mark.parametrize(
    ("share", "value", "status"), [(0.5, "0.758", "pass"), (0.6, "0.625, between", None), (0.8, "0.329, below", None)]
)
def test_correlation_shows_whether_batches_are_the_same(share, value, status):
    """``share`` of what FP8's losses have from batch to batch comes from other batches."""
    mixed = (1 - share) * np.asarray(noisy()) + share * np.asarray(noisy(seed=1))
    found = check_pair(align(*both(noisy(), mixed.tolist())))
    assert found.status == (status or "inconclusive")
    assert f"correlation of the detrended losses {value}" in found.text


@pytest.mark.parametrize(
    ("bf16", "fp8", "status"),
    [(None, None, "fail"), (4, 4, "fail"), (3, None, "inconclusive"), (None, 3, "inconclusive")],
)
def test_equal_losses_fail_unless_digits_may_hide_a_difference(bf16, fp8, status):
    [found] = find_copies(pairs((run(noisy(), decimals=bf16), run(noisy(), "fp8", decimals=fp8))))
    assert (found.status, found.decisive) == (status, True)
    assert find_copies(pairs(both(noisy(), [*noisy()[:-1], 2.0]))) == []
