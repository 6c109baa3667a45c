"""Intervals, equivalence, bands, power and worth, against published tables and simulation."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
from fp8parity.judging import stats as st
from fp8parity.judging import worth
from fp8parity.judging.stats import Interval
from fp8parity.judging.table import Allowed, Place
from fp8parity.judging.worth import Later


def test_interval_is_students():
    i = st.mean_interval([1.0, 2.0, 3.0], alpha=0.025)
    assert (i.mean, i.n, i.level) == (2.0, 3, 0.95)
    assert (i.mean - i.low, i.high - i.mean) == pytest.approx((4.3027 / 3**0.5, 4.3027 / 3**0.5), abs=1e-4)
    one = st.mean_interval([1.0], 0.05)
    assert (one.low, one.high, one.n, one.level) == (-math.inf, math.inf, 1, 0.9)


def place(interval: st.Interval, margin: float) -> Place:
    return Allowed.within(margin).place(interval.low, interval.high)


def test_a_prior_is_pooled_unless_the_session_spreads_more():
    prior = st.Prior(sd=0.2, df=4)
    calm = st.mean_interval([0.1, -0.1], 0.05, prior)
    assert calm.high == pytest.approx(2.0150 * ((0.02 + 4 * 0.04) / 5 / 2) ** 0.5, abs=1e-4)
    wild = [1.0, -1.0]
    assert st.mean_interval(wild, 0.05, prior) == st.mean_interval(wild, 0.05)
    assert st.mean_interval([1.0], 0.05, prior).high == float("inf")
    assert place(st.mean_interval([float("nan"), 0.0], 0.05, prior), 9.0) == Place.WORSE


@pytest.mark.parametrize(("spread", "least", "most"), [(1, 0.0, 0.06), (2, 0.0, 0.12), (5, 0.0, 0.08)])
def test_a_pooled_pair_of_seeds_seldom_passes_a_gap_at_the_margin(spread, least, most):
    """alpha is 0.05 where the prior is right; a session whose true spread is a multiple of it may err a little more, never often."""
    rng, prior = np.random.default_rng(2), st.Prior(sd=0.2, df=4)
    pairs = (rng.normal(0.5, 0.2 * spread, 2).tolist() for _ in range(4000))
    passed = [place(st.mean_interval(pair, 0.05, prior), 0.5) == Place.INSIDE for pair in pairs]
    assert least < np.mean(passed) < most


def test_gaps_of_windows_are_the_root_mean_square_over_seeds():
    found = st.rms_gaps([[2.06, 2.06, 2.0, 2.0], [2.08, 2.08, 4.0, 4.0]], [[2.0] * 4, [2.0, 2.0, 4.0, 4.0]], 2)
    assert found == pytest.approx([((0.03**2 + 0.04**2) / 2) ** 0.5, 0.0])


def test_escalation_keeps_its_error_rates():
    """A true gap at the margin passes in at most alpha of the sessions, with all three looks; a true gap of 0 never fails."""
    rng = np.random.default_rng(1)
    looks, alpha, margin, sd = (3, 5, 8), 0.05, 0.5, 0.15
    ends: dict[float, list[Place]] = {0.0: [], margin: []}
    for gap, found in ends.items():
        for _ in range(3000):
            x = rng.normal(gap, sd, size=looks[-1]).tolist()
            places = [place(st.mean_interval(x[:n], alpha / len(looks)), margin) for n in looks]
            found.append(next((p for p in places if p != Place.UNDECIDED), Place.UNDECIDED))
    assert ends[margin].count(Place.INSIDE) / 3000 < alpha
    assert ends[0.0].count(Place.WORSE) == 0
    assert ends[0.0].count(Place.INSIDE) / 3000 > 0.95


def test_band_bounds_the_false_alarm_rate_of_a_run():
    """Sound runs whose gaps have the law of the runs behind the band: at most alpha leave it (3000 runs: 3 sigma above)."""
    rng = np.random.default_rng(2)
    alpha, steps = 0.05, 160
    curve = 5 - np.linspace(0, 1, steps)

    def runs(n):
        return (curve * (1 + 0.01 * rng.normal(size=(n, steps)))).tolist()

    alarms = 0
    for _ in range(300):
        rms = st.rms_gaps(runs(8), [curve.tolist()] * 8, 8)
        band = st.paired_band(rms, 8, window=8, alpha=alpha, seeds=1, least=0.0)
        alarms += sum(bool((np.abs(band.gaps(a, curve.tolist())) > band.half).any()) for a in runs(10))
    assert alarms / 3000 < alpha + 3 * (alpha / 3000) ** 0.5


def test_band_has_the_gaps_of_the_last_windows():
    band = st.paired_band([0.001] * 4, 8, window=4, alpha=0.001, seeds=3, least=0.005)
    assert band.half == pytest.approx([scipy.stats.t.ppf(1 - 0.001 / 24, 8) * 0.001] * 4)
    assert band.gaps([5.0] * 8 + [6.0] + [5.0] * 7, [5.0] * 16).tolist() == pytest.approx([0, 0, 0.05, 0])
    short = st.WindowBand(2, np.array([0.25, 0.25]))
    assert short.gaps([9.0, 9.0, 2.5, 2.5, 1.0, 1.5, 9.0], [2.0] * 7).tolist() == [0.25, -0.375]


@pytest.mark.parametrize(
    ("values", "error", "df"),
    [
        ([0, 0, 2, 2], 1.0, 1),
        ([9] + [0] * 4 + [2] * 4, 1.0, 1),
        (range(20), 4 * 2.5**0.5 / 5**0.5, 4),
        (range(103), 10 * (55 / 6) ** 0.5 / 10**0.5, 9),
    ],
    ids=["2 batches of 2", "the first value is left over", "5 batches of 4", "never more than 10 batches"],
)
def test_the_error_of_correlated_values_is_that_of_their_batches(values, error, df):
    assert st.batch_error(np.asarray(values, dtype=float)) == pytest.approx((error, df))


def test_the_interval_covers_the_median_as_often_as_it_says():
    """11 pairs of skewed ratios: the interval is the 2nd to the 10th, so the binomial errs by 12/2048 on each side."""
    rng = np.random.default_rng(0)
    found = [st.median_interval(rng.lognormal(0.1, 0.4, 11).tolist()) for _ in range(4000)]
    above, below = sum(low > math.exp(0.1) for _, low, _ in found), sum(high < math.exp(0.1) for _, _, high in found)
    assert 0.002 < above / 4000 < 0.011 and 0.002 < below / 4000 < 0.011


def test_the_interval_of_few_values():
    assert st.median_interval(range(1, 7)) == (3.5, 1, 6)
    assert st.median_interval(range(1, 10)) == (5, 2, 8)
    with pytest.raises(ValueError, match="5 values are too few for a 95% interval"):
        st.median_interval(range(5))


@pytest.mark.parametrize(
    ("groups", "sd"), [([[1, 3]], 2**0.5), ([[1, 2, 3]], 1.0), ([[1, 3], [2]], 3**0.5), ([[-2]], 2.0)]
)
def test_a_pooled_sd_counts_a_single_value_from_zero(groups, sd):
    assert st.pooled_sd(groups) == pytest.approx(sd)


POINTS = np.arange(400, dtype=float)


def falling(slope: float, noise: float, seed: int = 0) -> np.ndarray:
    return 3.0 - slope * POINTS + np.random.default_rng(seed).normal(0, noise, len(POINTS))


def gap(mean: float, half: float = 0.0) -> Interval:
    return Interval(mean, mean - half, mean + half, 3, 0.9)


def test_the_line_gives_the_steps():
    """A loss of 3 - 0.001 step, 0.1% higher, is reached 2.8 steps later at the mean level of 2.8."""
    found = worth.later(POINTS, falling(0.001, 1e-6), gap(0.001, 0.0005))
    assert found is not None
    level = 3 - 0.001 * POINTS.mean()
    assert found.mean == pytest.approx(level, rel=1e-3)
    assert (found.low, found.high) == pytest.approx((0.5 * level, 1.5 * level), rel=1e-3)


@pytest.mark.parametrize(("slope", "said"), [(0.001, True), (0.00002, False), (0.0, False), (-0.001, False)])
def test_a_flat_or_rising_loss_says_nothing(slope, said):
    assert (worth.later(POINTS, falling(slope, 0.1), gap(0.001)) is not None) is said


def test_a_loss_that_repeats_has_no_slope_of_rounding():
    """All of its batches have one mean, so its slope of 1e-18 had no error, and a gap cost 1e15 steps."""
    for points, base in product((40, 100, 160, 200), (0.0, 1.0, 2.5)):
        for period in ([1.0, 2.0, 2.0, 1.0], [2.0, 1.0, 1.0, 2.0]):
            assert worth.later(np.arange(points, dtype=float), base + np.resize(period, points), gap(0.01)) is None


def test_the_interval_holds_the_truth():
    """Noise in the reference makes the slope unsure; with the gap's own error the interval covers 90% or a little more."""
    rng, hits, trials, true = np.random.default_rng(1), 0, 400, 0.004
    for i in range(trials):
        loss = falling(0.0005, 0.05, seed=i)
        seen = rng.normal(true, 0.001)
        found = worth.later(POINTS, loss, gap(seen, 1.645 * 0.001))
        assert found is not None
        hits += found.low <= true * (3 - 0.0005 * POINTS.mean()) / 0.0005 <= found.high
    low, high = scipy.stats.binomtest(hits, trials).proportion_ci()
    assert low > 0.85 and high < 0.98, (low, high)


def test_worth_is_the_speed_up_at_equal_loss():
    found = worth.worth((1.25, 1.25, 1.25), Later(0.02, 0.02, 0.02))
    assert found.worth == pytest.approx((1.25 / 1.02,) * 3)
    assert found.eaten == pytest.approx((1.25 - 1.25 / 1.02) / 0.25)
