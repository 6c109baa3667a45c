"""The worth of a recipe: how much later it reaches BF16's loss, and what that leaves of its speed-up."""

from __future__ import annotations

import numpy as np
import pytest
from fp8parity.judging import stats, worth
from fp8parity.judging.stats import Interval
from fp8parity.judging.worth import Later

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


def test_a_better_loss_is_reached_earlier():
    found = worth.later(POINTS, falling(0.001, 1e-6), gap(-0.001))
    assert found is not None and found.mean == pytest.approx(-2.8, rel=0.01) and found.high < 0


@pytest.mark.parametrize(("slope", "said"), [(0.001, True), (0.00002, False), (0.0, False), (-0.001, False)])
def test_a_flat_or_rising_loss_says_nothing(slope, said):
    assert (worth.later(POINTS, falling(slope, 0.1), gap(0.001)) is not None) is said


@pytest.mark.parametrize("points", [40, 100, 160, 200])
@pytest.mark.parametrize("period", [[1.0, 2.0, 2.0, 1.0], [2.0, 1.0, 1.0, 2.0]])
@pytest.mark.parametrize("base", [0.0, 1.0, 2.5])
def test_a_loss_that_repeats_has_no_slope_of_rounding(points, period, base):
    """All of its batches have one mean, so its slope of 1e-18 had no error, and a gap cost 1e15 steps."""
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
    low, high = stats.share_interval(hits, trials)
    assert low > 0.85 and high < 0.98, (low, high)


def test_worth_is_the_speed_up_at_equal_loss():
    found = worth.worth((1.25, 1.25, 1.25), Later(0.02, 0.02, 0.02))
    assert found.worth == pytest.approx((1.25 / 1.02,) * 3)
    assert found.eaten == pytest.approx((1.25 - 1.25 / 1.02) / 0.25)


def test_both_errors_add_in_squares():
    found = worth.worth((1.2, 1.25, 1.3), Later(0.0, -0.03, 0.03))
    low, middle, high = found.worth
    assert middle == 1.25
    assert low == pytest.approx(1.25 * np.exp(-np.hypot(np.log(1.25 / 1.2), np.log(1.03))))
    assert high == pytest.approx(1.25 * np.exp(np.hypot(np.log(1.3 / 1.25), -np.log(0.97))))
    assert low < 1.2 and high > 1.3


def test_what_is_eaten_is_at_most_all_of_a_gain():
    assert worth.worth((1.0, 1.1, 1.2), Later(0.5, 0.5, 0.5)).eaten == 1.0
    assert worth.worth((0.9, 1.0, 1.1), Later(0.5, 0.5, 0.5)).eaten is None
