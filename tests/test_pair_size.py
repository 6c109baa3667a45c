"""The size of the gap: digits, noise between equal runs, intervals, gradient norms, and what a gap costs."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from curves import both, noisy, pairs, run
from fp8parity.judging.pair import gap as gaps
from fp8parity.judging.pair.aligned import PUBLISHED, PairOptions, Pairs
from fp8parity.judging.stats import Interval, batch_error
from scipy import stats


def smallest_gap(text: str) -> float:
    return float(text.partition("can show is ")[2].partition("%")[0]) / 100


HIGH = [90.0] * 320 + [2.0] * 80
DIGITS = [
    ([2.0] * 400, 2, 0.01, 0.005, "pass"),
    ([2.0] * 400, 2, 0.0099, 0.005, "inconclusive"),
    ([2.0, 3.0] * 202 + [2.0], 0, 0.9, 81 / 202, "pass"),
    ([2.0, 4.0] * 202 + [2.0], 0, 0.9, 2 / math.sqrt(6 * 81) * 81 / 242, "pass"),
    (HIGH, 3, 0.0025, 0.0005, "pass"),
]


@pytest.mark.parametrize(("losses", "decimals", "margin", "shown", "status"), DIGITS)
def test_digits_must_show_half_the_margin(losses, decimals, margin, shown, status):
    """Rounding averages out where losses vary by more than it. The coarsest file in its tail counts."""
    fine, coarse = run(losses, decimals=None), run(losses, "fp8", decimals=decimals)
    for pair in ((fine, coarse), (coarse, fine), (coarse, coarse)):
        [found] = gaps.judge_digits(pairs(pair, options=PairOptions(margin=margin)))
        assert smallest_gap(found.text) == pytest.approx(shown, abs=1e-6) and found.status == status
    assert gaps.judge_digits(pairs((fine, fine)))[0].status == "pass"


@pytest.mark.parametrize(("points", "status"), [(40, "pass"), (39, "inconclusive")])
def test_tail_of_every_pair_needs_twenty_points(points, status):
    [found] = gaps.judge_digits(pairs(both(noisy()), both(noisy(points))))
    assert (found.status, found.decisive) == (status, status != "pass")


@pytest.mark.parametrize(
    ("spread", "repeats", "sd", "df", "source"),
    [
        (None, (), 0.0006, 24, PUBLISHED.source),
        (0.001, (), 0.001, 24, "the value of --spread"),
        (None, (0.0006,), 0.0006, 25, f"1 repeat of BF16, pooled with {PUBLISHED.source}"),
        (0.001, (0.0, 0.002), math.sqrt(28e-6 / 26), 26, "2 repeats of BF16, pooled with the value of --spread"),
        (None, (0.003,), 0.003, 1, "1 repeat of BF16"),
        (None, (0.003, -0.004), math.sqrt(12.5e-6), 2, "2 repeats of BF16"),
    ],
)
def test_repeats_are_pooled_or_replace_the_assumed_noise(spread, repeats, sd, df, source):
    found = Pairs((), PairOptions(spread=spread), repeats).noise
    assert (found.df, found.source) == (df, source) and found.sd == pytest.approx(sd)


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


def test_error_of_a_mean_has_the_correlation_of_values():
    """AR(1) with 0.9: the error of a mean of 400 values is 4.4 times that of independent values."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        x = np.zeros(400)
        for i in range(1, 400):
            x[i] = 0.9 * x[i - 1] + rng.normal()
        found.append(batch_error(x)[0])
    true = 1 / 0.1 / math.sqrt(400)
    assert 0.75 * true < float(np.median(found)) < 1.1 * true


FALLING = [5.0 - 0.005 * i for i in range(400)]
"""The mean over the last 80 points is 3.2025, so a gap of 2% is 12.81 steps of 0.005 nats."""


def price(
    gap: float, half: float, losses: list[float] = FALLING, options: PairOptions | None = None, **both_: Any
) -> str:
    given = pairs(both(losses, **both_), options=options)
    object.__setattr__(given, "gap", Interval(gap, gap - half, gap + half, 1, 0.9))
    [found] = gaps.price_gap(given)
    assert found.status is None and not found.decisive
    return found.text


LATER = "FP8 reaches BF16's loss 13 steps later"
SHARE = "3.2% [+1.6%, +4.8%] of the run"
BATCH = {"batch": [1.0, 3e9] + [1000.0] * 398}
PRICES = [
    (0.02, {}, f"{LATER}: {SHARE}"),
    (0.02, {**BATCH, "batch_unit": "tokens"}, f"{LATER}, 1.28e+04 tokens: {SHARE}"),
    (0.02, {**BATCH, "axis": "tokens"}, f"FP8 reaches BF16's loss 13 tokens later: {SHARE}"),
    (0.0, {}, "FP8 needs no more steps than BF16 (between -1.6% and +1.6% of the run)"),
    (-0.02, {"axis": "samples"}, "FP8 needs no more samples than BF16 (between -4.8% and -1.6% of the run)"),
    (0.02, {"losses": [2.0] * 400}, "cannot say: BF16's loss is flat in the tail"),
    (0.02, {"losses": [2.0 + 0.001 * i for i in range(400)]}, "cannot say: BF16's loss is flat in the tail"),
]


@pytest.mark.parametrize(("gap", "changes", "text"), PRICES)
def test_gap_is_priced_in_steps_until_equal_loss(gap, changes, text):
    assert price(gap, 0.01, **changes) == text


@pytest.mark.parametrize(
    ("asked", "bf16", "fp8", "says"),
    [
        (None, [], [], ""),
        (1.25, [], [], "; a speed-up of 1.250x is 1.211x at equal loss, 16% of it is used up"),
        (None, [0.5], [0.4], "; a speed-up of 1.250x is 1.211x at equal loss, 16% of it is used up"),
        (1.5, [0.5], [0.4], "; a speed-up of 1.500x is 1.453x at equal loss, 9% of it is used up"),
        (None, [0.4], [0.5], "; a step of FP8 is not faster (0.800x), so nothing pays for it"),
        (1.01, [], [], "; a speed-up of 1.010x is 0.979x at equal loss, 100% of it is used up"),
    ],
)
def test_later_end_uses_up_the_speed_up(asked, bf16, fp8, says):
    """A given speed-up comes before the one of the medians of the logged times."""
    odd = [[*seconds * 399, 9.0] if seconds else [] for seconds in (bf16, fp8)]
    pair = run(FALLING, seconds=odd[0]), run(FALLING, "fp8", seconds=odd[1])
    given = pairs(pair, options=PairOptions(speed_up=asked))
    object.__setattr__(given, "gap", Interval(0.02, 0.01, 0.03, 1, 0.9))
    assert gaps.price_gap(given)[0].text == f"{LATER}: {SHARE}{says}"


def norms(fp8: list[float], bf16: float = 1.0) -> tuple[Any, Any]:
    given = noisy(len(fp8))
    return run(given, grad_norm=[bf16] * len(fp8)), run(given, "fp8", grad_norm=fp8)


NORMS = [
    ([1.0] * 40 + [9.0] * 280 + [1.5] * 80, "1.000 in the first tenth, 1.500 in the tail, 99% below 1.500", False),
    ([1.0625] * 40 + [9.0] * 280 + [1.5] * 80, "1.062 in the first tenth, 1.500 in the tail", True),
    ([0.9375] * 40 + [9.0] * 280 + [1.5] * 80, "0.938 in the first tenth", True),
    ([1.049] * 40 + [9.0] * 360, "1.049 in the first tenth", False),
    ([2.0, 2.0, 1.0, 1.0, 1.0, *[3.0] * 35], "1.000 in the first tenth, 3.000 in the tail", False),
    ([1.0] * 320 + [1.0, math.inf] * 40, "1.000 in the tail", False),
    ([math.nan] * 40 + [1.0] * 360, "none in the first tenth, 1.000 in the tail", False),
    ([1.0] * 320 + [math.nan] * 80, "1.000 in the first tenth, none in the tail", False),
    ([math.nan] * 400, "none in the first tenth, none in the tail", False),
]


@pytest.mark.parametrize(("values", "says", "odd"), NORMS)
def test_gradient_norms_of_the_first_tenth_and_the_tail(values, says, odd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for bf16 in (1.0, 2.0):
            [found] = gaps.compare_norms(pairs(norms([bf16 * v for v in values], bf16), both(noisy())))
            assert says in found.text and ("a wrong scale" in found.text) == odd and found.status is None
    assert gaps.compare_norms(pairs(both(noisy())))[0].text == "not logged"
