"""The size of the gap and its pairing: digits, noise, intervals, norms, price, and what makes a pair."""

from __future__ import annotations

import math
import re
import warnings
from typing import Any

import numpy as np
import pytest
from curves import both, noisy, pairs, run, status, texts
from fp8parity.judging.pair import bands, metrics, pairing
from fp8parity.judging.pair import gap as size
from fp8parity.judging.pair.aligned import Pairs, align
from fp8parity.judging.pair.options import PairOptions
from fp8parity.judging.stats import Interval, batch_error
from scipy import stats

HIGH = [90.0] * 320 + [2.0] * 80
DIGITS = [
    ([2.0] * 400, 2, 0.01, 0.005, "pass"),
    ([2.0] * 400, 2, 0.0099, 0.005, "inconclusive"),
    (HIGH, 3, 0.0025, 0.0005, "pass"),
]


@pytest.mark.parametrize(("losses", "decimals", "margin", "shown", "expected"), DIGITS)
def test_digits_must_show_half_the_margin(losses, decimals, margin, shown, expected):
    """Rounding averages out where losses vary by more than it. The coarsest file in its tail counts."""
    fine, coarse = run(losses, decimals=None), run(losses, "fp8", decimals=decimals)
    for pair in ((fine, coarse), (coarse, fine), (coarse, coarse)):
        found = pairs(pair, options=PairOptions(margin=margin)).each(pairing.digits)
        assert found[-1].value == pytest.approx(shown, abs=1e-6) and status(found) == expected
    assert status(pairs((fine, fine)).each(pairing.digits)) == "pass"


def test_losses_that_were_bf16_are_coarse():
    first, second = ([round(x * 128, 0) / 128 for x in losses] for losses in (noisy(), noisy(seed=1)))
    _, found = pairs(both(first, second)).each(pairing.digits)
    assert found.source == "multiples of 1/128 (losses that were BF16)" and found.value > 0


@pytest.mark.parametrize("count", [1, 2, 3])
def test_interval_has_the_noise_of_curves_and_of_equal_runs(count):
    """Welch and Satterthwaite for one pair; several pairs are pooled with that."""
    curves = [np.random.default_rng(s).normal(0.001 + 1e-4 * s, 0.01, 400) for s in range(3, 3 + count)]
    errors = [batch_error(c) for c in curves]
    own, df = float(np.mean([e**2 for e, _ in errors])), sum(d for _, d in errors)
    variance = own + 0.0006**2
    freedom = variance**2 / (own**2 / df + 0.0006**4 / 24)
    means = [c.mean() for c in curves]
    if count > 1:
        freedom = round(freedom)
        variance = ((count - 1) * np.var(means, ddof=1) + freedom * variance) / (count - 1 + freedom)
        freedom += count - 1
    half = stats.t.ppf(0.9, freedom) * math.sqrt(variance / count)
    found = Pairs((), PairOptions(alpha=0.1)).interval(curves)
    assert (found.low, found.high) == pytest.approx((np.mean(means) - half, np.mean(means) + half), rel=1e-9)
    assert (found.n, found.level) == (count, 0.8)


FALLING = [5.0 - 0.005 * i for i in range(400)]
"""The mean over the last 80 points is 3.2025, so a gap of 2% is 12.81 steps of 0.005 nats."""


def price(
    gap: float, half: float, losses: list[float] = FALLING, options: PairOptions | None = None, **both_: Any
) -> str:
    given = pairs(both(losses, **both_), options=options)
    object.__setattr__(given, "gap", Interval(gap, gap - half, gap + half, 1, 0.9))
    found = size.price(given)
    assert status([found]) == "pass"
    return found.source


PRICES = [
    (0.02, {}, "+3.20% [+1.60%, +4.80%] more tokens to reach BF16's loss of 3.2025"),
    (0.0, {}, "+0.00% [-1.60%, +1.60%] more tokens to reach BF16's loss of 3.2025"),
    (-0.02, {"axis": "samples"}, "-3.20% [-4.80%, -1.60%] more tokens to reach BF16's loss of 3.2025"),
    (0.02, {"losses": [2.0] * 400}, "cannot say: BF16's loss is flat in the tail"),
]


@pytest.mark.parametrize(("gap", "changes", "text"), PRICES)
def test_gap_is_priced_in_steps_until_equal_loss(gap, changes, text):
    assert price(gap, 0.01, **changes) == text


def norms(fp8: list[float], bf16: float = 1.0) -> tuple[Any, Any]:
    given = noisy(len(fp8))
    return run(given, grad_norm=[bf16] * len(fp8)), run(given, "fp8", grad_norm=fp8)


STEADY = [1.0] * 400
NORMS = [
    ([1.0] * 40 + [9.0] * 40 + [1.1] * 320, "1.000 in the first tenth, 1.100 in the tail, 99% below 1.100", None),
    ([1.0625] * 80 + [1.0] * 320, "1.062 in the first tenth, 1.000 in the tail, 99% below 1.000; away from 1", None),
    ([1.0] * 320 + [1.0, math.inf] * 40, "1.000 in the tail", None),
    ([1.2] * 400, "1.200 in the tail", None),
    ([1.0] * 300 + [1.3] * 100, "1.3x BF16's from step 301 on", "fail"),
    ([0.7] * 400, "0.7x BF16's from step 1 on", "fail"),
    ([1.0] * 395 + [0.35] * 5, "0.35x BF16's from step 396 on", "fail"),
    ([1.0] * 399 + [0.35], "falls by -65.000% from step 400 on, too near the end to judge", "inconclusive"),
    ([0.0] * 400, "0x BF16's from step 1 on", "fail"),
    ([1.0] * 200 + [0.0] + [1.0] * 199, "FP8's gradient norm is 0 at step 201", "inconclusive"),
    ([1.0] * 100 + [3.0] * 81 + [1.0] * 219, "outside 25% at 81 of 400 points", "inconclusive"),
]


@pytest.mark.parametrize(("values", "says", "expected"), NORMS)
def test_gradient_norms_are_judged_on_both_sides(values, says, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bf16 in (1.0, 2.0):
            found = pairs(norms([bf16 * v for v in values], bf16)).each(bands.norms)
            assert says in "\n".join(texts(found)) and status(found) == (expected or "pass")


@pytest.mark.parametrize(
    ("bf16", "fp8", "says", "expected"),
    [
        ([], [], "not logged", "pass"),
        (STEADY, [], "only BF16 logged gradient norms", "inconclusive"),
        ([], STEADY, "only FP8 logged gradient norms", "inconclusive"),
        ([0.0] * 400, STEADY, "BF16's gradient norm is 0 at step 1", "fail"),
    ],
)
def test_gradient_norm_missing_in_one_run_is_no_pass(bf16, fp8, says, expected):
    found = pairs((run(noisy(), grad_norm=bf16), run(noisy(), "fp8", grad_norm=fp8))).each(bands.norms)
    assert says in "\n".join(texts(found)) and status(found) == expected


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


REFUSED = [
    ({}, {"axis": "samples"}, "the first counts steps, the second samples"),
    ({}, {"points": list(range(10, 410, 10))}, "the first is logged every 1 steps, the second every 10 steps"),
    ({"points": list(range(100, 140))}, {}, "they share no point with a finite loss"),
    ({"loss": [0.0] * 40}, {"loss": [0.0] * 40}, "they share no point with a finite loss that is not 0"),
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


@pytest.mark.parametrize(("bf16", "fp8", "expected", "says"), SCHEDULES)
def test_pair_has_the_same_schedule_and_batches(bf16, fp8, expected, says):
    """A thousandth is the printed digits. Points that one run lacks are not compared."""
    pair = align(run(noisy(100), **bf16), run(noisy(100), "fp8", **(bf16 if fp8 is None else fp8)))
    found = pairing.pairing(pair)
    assert status(found) == expected and says in "; ".join(texts(found))
    assert all(metrics.METRICS[r.metric].precondition for r in found)


@pytest.mark.parametrize(
    ("share", "value", "expected"),
    [(0.5, "0.758", "pass"), (0.6, "0.625", "inconclusive"), (0.8, "0.329", "inconclusive")],
)
def test_correlation_shows_whether_batches_are_the_same(share, value, expected):
    """``share`` of what FP8's losses have from batch to batch comes from other batches."""
    mixed = (1 - share) * np.asarray(noisy()) + share * np.asarray(noisy(seed=1))
    found = pairing.pairing(align(*both(noisy(), mixed.tolist())))
    [second_half] = [r for r in found if r.metric == metrics.CORRELATION][:1]
    assert (status(found), f"{second_half.value:.3f}") == (expected, value)
    assert ("other batches" in metrics.sentence(second_half)) == (share == 0.8)


@pytest.mark.parametrize(
    ("bf16", "fp8", "expected"),
    [(None, None, "fail"), (4, 4, "fail"), (3, None, "inconclusive"), (None, 3, "inconclusive")],
)
def test_equal_losses_fail_unless_digits_may_hide_a_difference(bf16, fp8, expected):
    found = pairs((run(noisy(), decimals=bf16), run(noisy(), "fp8", decimals=fp8))).each(pairing.copies)
    assert (status(found), metrics.METRICS[found[0].metric].precondition) == (expected, True)
    last = pairs(both(noisy(), [*noisy()[:-1], 2.0])).each(pairing.copies)
    assert (status(last), last[1].metric) == ("inconclusive", "equal losses in a row")
    assert status(pairs(both(noisy(), [1.0001 * x for x in noisy()])).each(pairing.copies)) == "pass"
