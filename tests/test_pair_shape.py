"""How the gap of two imported runs changes: between quarters, into the decay, and in jumps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from curves import STEPS, curve, judged, lines, near, noisy, pairs, run
from fp8parity.judging.pair import PairOptions, judge
from fp8parity.judging.pair.aligned import Pairs
from fp8parity.judging.pair.gap import describe_jumps, find_decay, judge_trend
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
    [found] = judge_trend(with_gap(stairs((200, 0.5), (100, before), (100, after))))
    assert found.text.startswith(f"{words}: ") and found.status == status
    half, change = float(stats.t.ppf(0.95, 24)) * 0.0006, after - before
    assert f" {change:+.3%} [{change - half:+.3%}, {change + half:+.3%}] " in found.text
    assert f"({change * 10:+.4%} [" in found.text, "the middles of the quarters lie 100 steps apart"


@pytest.mark.parametrize(
    ("height", "words", "status"),
    [(0.01, "opening in the decay", "fail"), (-0.01, "growing in favor", "pass"), (0.0, "constant within", "pass")],
)
def test_decay_is_compared_with_the_points_before_it(height, words, status):
    found = judge_trend(with_gap(stairs((320, 0.0), (80, height)), [1.0] * 320 + [0.1] * 80))[1]
    assert (found.text.startswith(words), found.status) == (True, status)
    assert f"({height * 12.5:+.4%} [" in found.text


def test_slope_is_that_of_the_axis():
    """Every point is ten samples, and 42 points have quarters of 10."""
    given = with_gap(stairs((32, 0.0), (10, 0.01)), points=list(range(10, 430, 10)), axis="samples")
    text = judge_trend(given)[0].text
    assert text.startswith("growing: ") and "(+10.0000% [" in text and text.endswith("per 1,000 samples)")


@pytest.mark.parametrize(
    ("rates", "start"),
    [
        ([1.0] * 40 + [0.5] * 60, 40),
        ([1.0] * 39 + [0.5] * 61, None),
        ([1.0] * 90 + [0.5] * 10, 90),
        ([1.0] * 91 + [0.5] * 9, None),
        ([1.0] * 30 + [0.98] * 20 + [0.5] * 50, 50),
        ([1.0] * 30 + [0.979] * 20 + [0.5] * 50, None),
        ([0.1] * 20 + [1.0] * 30 + [0.5] * 50, 50),
        ([0.0] * 100, None),
        ([1.0] * 50 + [0.5] * 49 + [math.inf], None),
        ([], None),
    ],
)
def test_decay_starts_after_the_peak_and_two_fifths(rates, start):
    assert find_decay(with_gap(np.zeros(100), rates).pairs[0]) == start


@pytest.mark.parametrize(("points", "lines"), [(360, 2), (359, 1), (200, 1)])
def test_decay_that_a_shorter_pair_lacks_is_not_judged(points, lines):
    """The decay begins at point 350. Each pair needs ten points of it."""
    rates = [1.0] * 350 + [0.1] * 50
    bf16, fp8 = (
        [run(values[:n], f"{name}{n}", learning_rate=rates[:n]) for n in (400, points)]
        for name, values in (("bf16", noisy()), ("fp8", near()))
    )
    found = [text for name, text in judge(bf16, fp8, PairOptions()).lines if name == "shape"]
    assert len(found) == lines and "nan" not in " ".join(found)


def spike(size: float, first: int, last: int) -> str:
    return f"{'falls' if size < 0 else 'rises'} by {size:+.3%} from step {first} to step {last} and comes back"


def jump(size: float, step: int) -> str:
    return f"jumps by {size:+.3%} at step {step}"


JUMPS = [
    (((150, 0.0), (150, 0.01)), [jump(0.01, 151)]),
    (((150, 0.01), (150, 0.0)), [jump(-0.01, 151)]),
    (((70, 0.0), (230, 0.01)), [jump(0.01, 71)]),
    (((60, 0.0), (240, 0.01)), []),
    (((280, 0.0), (20, 0.01)), [jump(0.01, 281)]),
    (((290, 0.0), (10, 0.01)), []),
    (((155, 0.0), (145, 0.01)), [jump(0.01, 151)]),
    (((100, 0.0), (100, 0.01), (100, 0.03)), [jump(0.01, 101), jump(0.02, 201)]),
    (((150, 0.0), (30, 0.01), (120, 0.03)), [jump(0.03, 151)]),
    (((150, 0.0), (40, 0.01), (110, 0.03)), [jump(0.01, 151), jump(0.02, 191)]),
    (((150, 0.0), (10, 0.01), (140, 0.006)), [jump(0.006, 151)]),
    (((150, 0.0), (150, 6.5e-6)), [jump(6.5e-6, 151)]),
    (((150, 0.0), (150, 5.5e-6)), []),
    (((150, 0.0), (10, 0.01), (140, 0.0)), [spike(0.01, 151, 160)]),
    (((155, 0.0), (20, 0.01), (125, 0.0)), [spike(0.01, 151, 180)]),
    (((150, 0.0), (20, -0.01), (130, 0.0)), [spike(-0.01, 151, 170)]),
    (((150, 0.0), (10, 2**-7), (140, 2**-8)), [spike(2**-7, 151, 160)]),
    (((150, 0.01), (50, 0.0), (100, 0.01)), [spike(-0.01, 151, 200)]),
    (((100, 0.0), (50, 0.01), (50, 0.03), (100, 0.0)), [jump(0.01, 101), spike(0.02, 151, 200)]),
    (((60, 0.0), (20, 0.01), (220, 0.0)), []),
    (((280, 0.0), (10, 0.01), (10, 0.0)), [spike(0.01, 281, 290)]),
    ([*[(10, 0.005 * (i % 2)) for i in range(7)], (230, 0.05)], [jump(0.05 - 0.005 / 3, 71)]),
]


@pytest.mark.parametrize(("parts", "expected"), JUMPS)
def test_jumps_and_spikes_are_found(parts, expected):
    """30 windows of 10 points. A jump stays for three windows, comes after the first fifth and before the last window."""
    found = describe_jumps(with_gap(stairs(*parts)))
    assert [f.text for f in found] == expected
    assert all(f.status is None and not f.decisive for f in found)


def test_jumps_of_all_pairs_are_described():
    first, second = with_gap(stairs((150, 0.0), (150, 0.01))), with_gap(stairs((200, 0.0), (100, -0.01)))
    both = Pairs((*first.pairs, *second.pairs), PairOptions())
    assert [f.text for f in describe_jumps(both)] == [jump(0.01, 151), jump(-0.01, 201)]


@pytest.mark.parametrize(("size", "named"), [(0.0017, False), (0.0019, True), (-0.0019, True)])
def test_jump_is_above_six_deviations_of_the_differences(tmp_path, size, named):
    """Neighboring windows differ by +0.02%, nothing and -0.02%, in turn: 6 x 1.4826 x 0.02% = 0.178%."""
    gap = np.repeat(np.resize([0.0, 2e-4, 2e-4], 31), 13)[:STEPS] + np.repeat([0.0, size], [182, STEPS - 182])
    v = judged(tmp_path, curve(), curve().with_gap(gap.tolist()))
    assert ("jumps by" in lines(v, "shape")) == named


@pytest.mark.parametrize(("size", "named"), [(0.05, True), (0.0026, True), (0.0024, False)])
def test_spike_above_the_margin_is_in_the_headline(size, named):
    gap = stairs((175, 0.0), (50, size), (175, 0.0))
    v = judge([run(noisy())], [run(near(gap), "fp8")], PairOptions())
    assert (v.status, "the gap rises by +" in v.headline) == ("pass", named)


@pytest.mark.parametrize(
    ("place", "ratio", "words"),
    [
        (150, 2.1, "with a spike"),
        (150, 2.0, "without a spike"),
        (160, 2.1, "without a spike"),
        (140, 2.1, "with a spike"),
        (139, 2.1, "without a spike"),
        (None, 1.0, "and no gradient norm is logged there"),
    ],
)
def test_jump_is_compared_with_the_gradient_norm(place, ratio, words):
    """The window of the jump and the one before it count. The median ratio is 1.5."""
    theirs = [3.0] * 300
    if place is None:
        theirs[140:160] = [math.nan] * 20
    else:
        theirs[152], theirs[place] = math.nan, 3.0 * ratio
    bf16 = run([2.0] * 300, grad_norm=[2.0] * 300)
    [found] = describe_jumps(pairs((bf16, run([2.0] * 150 + [2.02] * 150, "fp8", grad_norm=theirs))))
    assert found.text.startswith(f"{jump(0.01, 151)}, {words}")


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


def test_gap_that_opens_in_the_decay_fails(tmp_path):
    late = [0.0] * (STEPS * 4 // 5) + [0.005] * (STEPS // 5)
    bf16, fp8 = curve(decay_from=0.8), curve(chaos=1, decay_from=0.8).with_gap(late)
    v = judged(tmp_path, bf16, fp8, PairOptions(margin=0.02))
    assert v.code == 1 and "opening in the decay" in lines(v, "shape")
    flat = [replace(made, learning_rate=[0.0] * STEPS) for made in (bf16, fp8)]
    for pair in (flat, (curve(), curve(chaos=1))):
        assert "decay" not in lines(judged(tmp_path, *pair), "shape"), "no rate, and a cosine schedule"
