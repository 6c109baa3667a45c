"""How the gap of two imported runs changes: between quarters, into the decay, and in jumps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from curves import STEPS, near, noisy, pairs, run
from fp8parity.judging.pair import PairOptions, judge
from fp8parity.judging.pair import gap as shape
from fp8parity.judging.pair.aligned import Pairs
from scipy import stats


def with_gap(gap: Sequence[float] | np.ndarray, rates: Sequence[float] = (), **changes: Any) -> Pairs:
    """A pair with this gap at each point. BF16's loss is always 2."""
    fp8 = (2.0 * (1 + np.asarray(gap, dtype=float))).tolist()
    given = {"learning_rate": list(rates), **changes}
    return pairs((run([2.0] * len(fp8), **given), run(fp8, "fp8", **given)))


def stairs(*parts: tuple[int, float]) -> np.ndarray:
    """A gap of so many points at each height."""
    return np.concatenate([np.full(n, height) for n, height in parts])


TRENDS = [
    (0.0, 0.01, "growing", "fail"),
    (-0.002, 0.008, "growing", "fail"),
    (-0.02, -0.01, "shrinking", "pass"),
    (0.02, 0.01, "shrinking", "pass"),
    (-0.01, 0.0, "shrinking", "pass"),
    (0.002, -0.008, "growing in favor of FP8", "pass"),
    (0.01, 0.01, "constant within noise", "pass"),
    (0.0, 0.001, "constant within noise", "pass"),
]


@pytest.mark.parametrize(("before", "after", "words", "status"), TRENDS)
def test_last_quarter_is_compared_with_the_third(before, after, words, status):
    """Without noise along the curve, the interval is that of the published spread between equal runs."""
    [found] = shape.judge_trend(with_gap(stairs((200, 0.5), (100, before), (100, after))))
    assert found.text.startswith(f"{words}: ") and found.status == status
    half, change = float(stats.t.ppf(0.95, 24)) * 0.0006, after - before
    assert f" {change:+.3%} [{change - half:+.3%}, {change + half:+.3%}] " in found.text
    assert f"({change * 10:+.4%} [" in found.text, "the middles of the quarters lie 100 steps apart"


@pytest.mark.parametrize(
    ("height", "words", "status"),
    [(0.01, "opening in the decay", "fail"), (-0.01, "growing in favor", "pass"), (0.0, "constant within", "pass")],
)
def test_decay_is_compared_with_the_points_before_it(height, words, status):
    found = shape.judge_trend(with_gap(stairs((320, 0.0), (80, height)), [1.0] * 320 + [0.1] * 80))[1]
    assert (found.text.startswith(words), found.status) == (True, status)
    assert f"({height * 12.5:+.4%} [" in found.text


@pytest.mark.parametrize(
    ("rates", "start"),
    [
        ([1.0] * 40 + [0.5] * 60, 40),
        ([1.0] * 39 + [0.5] * 61, None),
        ([1.0] * 90 + [0.5] * 10, 90),
        ([1.0] * 91 + [0.5] * 9, None),
        ([1.0] * 30 + [0.98] * 20 + [0.5] * 50, 50),
        ([1.0] * 30 + [0.979] * 20 + [0.5] * 50, None),
        ([], None),
    ],
)
def test_decay_starts_after_the_peak_and_two_fifths(rates, start):
    assert shape.find_decay(with_gap(np.zeros(100), rates).pairs[0]) == start


def spike(size: float, first: int, last: int) -> str:
    return f"{'falls' if size < 0 else 'rises'} by {size:+.3%} from step {first} to step {last} and comes back"


def jump(size: float, step: int) -> str:
    return f"jumps by {size:+.3%} at step {step}"


JUMPS = [
    (((150, 0.0), (150, 0.01)), [jump(0.01, 151)]),
    (((150, 0.01), (150, 0.0)), [jump(-0.01, 151)]),
    (((60, 0.0), (240, 0.01)), []),
    (((290, 0.0), (10, 0.01)), []),
    (((100, 0.0), (100, 0.01), (100, 0.03)), [jump(0.01, 101), jump(0.02, 201)]),
    (((150, 0.0), (40, 0.01), (110, 0.03)), [jump(0.01, 151), jump(0.02, 191)]),
    (((150, 0.0), (150, 5.5e-6)), []),
    (((150, 0.0), (10, 0.01), (140, 0.0)), [spike(0.01, 151, 160)]),
    (((150, 0.0), (20, -0.01), (130, 0.0)), [spike(-0.01, 151, 170)]),
    ([*[(10, 0.005 * (i % 2)) for i in range(7)], (230, 0.05)], [jump(0.05 - 0.005 / 3, 71)]),
]


@pytest.mark.parametrize(("parts", "expected"), JUMPS)
def test_jumps_and_spikes_are_found(parts, expected):
    """30 windows of 10 points. A jump stays for three windows, comes after the first fifth and before the last window."""
    found = shape.describe_jumps(with_gap(stairs(*parts)))
    assert [f.text for f in found] == expected
    assert all(f.status is None and not f.decisive for f in found)


@pytest.mark.parametrize(("size", "named"), [(0.05, True), (0.0026, True), (0.0024, False)])
def test_spike_above_the_margin_is_in_the_headline(size, named):
    gap = stairs((175, 0.0), (50, size), (175, 0.0))
    v = judge([run(noisy())], [run(near(gap), "fp8")], PairOptions())
    assert (v.status, "the gap rises by +" in v.headline) == ("pass", named)


def dipped(where: int, length: int, depth: float = -0.02, grows: float = 0.0) -> np.ndarray:
    """A gap of 0.1% that grows evenly, with a dip (or a spike) of so many steps from step ``where`` on."""
    gap = np.linspace(0.001, 0.001 + grows, STEPS)
    gap[where : where + length] += depth
    return gap


@pytest.mark.parametrize(
    ("gap", "margin", "status"),
    [
        (np.linspace(0, 0.005, STEPS), 0.02, "fail"),
        (np.linspace(0.02, 0.0, STEPS), 0.01, "pass"),
        (dipped(220, 20), 0.03, "pass"),
        (dipped(240, 35), 0.03, "pass"),
        (dipped(320, 45, 0.02), 0.03, "pass"),
        (dipped(240, 30, -0.02, 0.006), 0.02, "fail"),
        (dipped(240, 30, 0.02, 0.006), 0.02, "fail"),
        (dipped(202, 94), 0.02, "fail"),
    ],
    ids=["grows", "shrinks", "dip", "long dip", "spike", "dip in growth", "spike in growth", "most of a quarter"],
)
def test_growth_fails_and_a_change_that_comes_back_does_not(gap, margin, status):
    v = judge([run(noisy())], [run(near(gap, noise=2), "fp8")], PairOptions(margin=margin))
    assert v.status == status and (status == "pass" or v.headline == "the gap is growing")
