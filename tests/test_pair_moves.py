"""How the gap of two imported runs moves, in whole sentences: between quarters, into the decay, and in jumps. These runs have no noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fp8parity.judging.pair import judge
from fp8parity.judging.pair.aligned import Aligned, align
from fp8parity.judging.pair.finding import Asked, Finding
from fp8parity.judging.pair.shape import change, decay_start, jumps, shape
from plain_runs import noisy, run
from scipy import stats

HALF = float(stats.t.ppf(0.95, 24)) * 0.0006
"""Without noise along the curve, the interval is that of the published spread between equal runs: 0.1027%."""


def with_gap(gap: Sequence[float] | np.ndarray, rates: Sequence[float] = (), **changes: Any) -> Aligned:
    """A pair with this gap at each point. BF16's loss is always 2."""
    fp8 = (2.0 * (1 + np.asarray(gap, dtype=float))).tolist()
    return align(
        run([2.0] * len(fp8), learning_rate=list(rates), **changes),
        run(fp8, "fp8", learning_rate=list(rates), **changes),
    )


def stairs(*parts: tuple[int, float]) -> np.ndarray:
    """A gap of so many points at each height."""
    return np.concatenate([np.full(n, height) for n, height in parts])


def moved(by: float, per: float, between: str = "from the third to the last quarter", axis: str = "steps") -> str:
    low, high = by - HALF, by + HALF
    slope = f"{by * per:+.4%} [{low * per:+.4%}, {high * per:+.4%}] per 1,000 {axis}"
    return f"the gap moved by {by:+.3%} [{low:+.3%}, {high:+.3%}] {between} ({slope})"


@pytest.mark.parametrize(
    ("before", "after", "words", "status"),
    [
        (0.0, 0.01, "growing", "fail"),
        (-0.002, 0.008, "growing", "fail"),
        (-0.02, -0.01, "shrinking", "pass"),
        (0.02, 0.01, "shrinking", "pass"),
        (0.01, 0.0, "shrinking", "pass"),
        (-0.01, 0.0, "shrinking", "pass"),
        (0.002, -0.008, "growing in favor of FP8", "pass"),
        (0.01, 0.01, "constant within noise", "pass"),
        (0.0, 0.001, "constant within noise", "pass"),
        (0.0, -0.001, "constant within noise", "pass"),
    ],
)
def test_the_last_quarter_beside_the_third(before, after, words, status):
    """The middles of two quarters of 100 points lie 100 steps apart. The first half of the run counts for nothing."""
    [found] = [
        f for f in shape([with_gap(stairs((200, 0.5), (100, before), (100, after)))], Asked()) if "jumps" not in f.text
    ]
    text = f"{words}: {moved(after - before, 10)}"
    assert found == Finding("shape", text, status, False, "the gap is growing" if status == "fail" else "")


def test_the_slope_is_that_of_the_axis():
    """Every point is ten samples, and 42 points have quarters of 10."""
    points = list(range(10, 430, 10))
    [found] = shape([with_gap(stairs((32, 0.0), (10, 0.01)), points=points, axis="samples")], Asked())[:1]
    assert found.text == f"growing: {moved(0.01, 10, axis='samples')}"


def test_the_points_of_the_shortest_pair_are_compared():
    """The quarters are those of 200 points, also in the longer run."""
    long, short = with_gap(stairs((150, 0.0), (250, 0.01))), with_gap(stairs((150, 0.0), (50, 0.01)))
    for pairs in ([long, short], [short, long]):
        text = shape(pairs, Asked())[0].text
        assert text.startswith("growing: the gap moved by +") and "per 1,000 steps)" in text
    found = change([long.gap, short.gap], 150, Asked())
    assert found.n == 2 and found.mean == pytest.approx(0.01)


def test_a_change_compares_as_many_points_on_both_sides():
    for parts, start in (
        (((20, 0.001), (20, 0.003)), 20),
        (((10, 5.0), (20, 0.001), (20, 0.003)), 30),
        (((20, 0.001), (20, 0.003), (10, 7.0)), 20),
    ):
        assert change([stairs(*parts)], start, Asked()).mean == pytest.approx(0.002)


@pytest.mark.parametrize(
    ("rates", "start"),
    [
        ([1.0] * 40 + [0.5] * 60, 40),
        ([1.0] * 39 + [0.5] * 61, None),
        ([1.0] * 90 + [0.5] * 10, 90),
        ([1.0] * 91 + [0.5] * 9, None),
        ([1.0] * 100, None),
        ([1.0] * 30 + [0.98] * 20 + [0.5] * 50, 50),
        ([1.0] * 30 + [0.979] * 20 + [0.5] * 50, None),
        ([0.1] * 20 + [1.0] * 30 + [0.5] * 50, 50),
        ([3.0] * 50 + [1.5] * 50, 50),
        ([0.0] * 100, None),
        ([1.0] * 50 + [0.5] * 49 + [math.inf], None),
        ([], None),
    ],
)
def test_the_decay_begins_after_the_peak_and_after_two_fifths_of_the_run(rates, start):
    assert decay_start(with_gap(np.zeros(100), rates)) == start


def test_the_decay_is_that_of_bf16():
    """Whatever FP8's rates are: other, zero, or not finite."""
    bf16 = [1.0] * 50 + [0.5] * 50
    for fp8 in ([1.0] * 60 + [0.5] * 40, [0.0] * 100, [math.inf] + [1.0] * 99):
        assert (
            decay_start(align(run([2.0] * 100, learning_rate=bf16), run([2.0] * 100, "fp8", learning_rate=fp8))) == 50
        )
        assert (
            decay_start(align(run([2.0] * 100, learning_rate=fp8), run([2.0] * 100, "fp8", learning_rate=bf16))) != 50
        )


@pytest.mark.parametrize(
    ("height", "words", "status"),
    [
        (0.01, "opening in the decay", "fail"),
        (-0.01, "growing in favor of FP8", "pass"),
        (0.0, "constant within noise", "pass"),
    ],
)
def test_the_decay_beside_as_many_points_before_it(height, words, status):
    """It begins at point 320 of 400, and its middle lies 80 steps from that of the points before it."""
    pair = with_gap(stairs((320, 0.0), (80, height)), [1.0] * 320 + [0.1] * 80)
    found = shape([pair], Asked())[1]
    text = f"{words}: {moved(height, 12.5, 'from before the decay into it')}"
    assert found == Finding("shape", text, status, False, "the gap is opening in the decay" if status == "fail" else "")


@pytest.mark.parametrize(("points", "lines"), [(360, 2), (359, 1), (330, 1), (200, 1)])
def test_a_decay_that_a_shorter_pair_does_not_reach_is_not_judged(points, lines):
    """The decay begins at point 350. Each pair needs ten points of it."""
    losses, rates = noisy(), [1.0] * 350 + [0.1] * 50
    near = (np.asarray(losses) * (1 + np.random.default_rng(9).normal(0, 1e-4, 400))).tolist()
    bf16, fp8 = (
        [run(values[:n], f"{name}{n}", learning_rate=rates[:n]) for n in (400, points)]
        for name, values in (("bf16", losses), ("fp8", near))
    )
    shapes = [text for name, text in judge(bf16, fp8, Asked()).lines if name == "shape"]
    assert (len(shapes), all("nan" not in text for text in shapes)) == (lines, True)


def at(*parts: tuple[int, float]) -> list[str]:
    """The jumps of a run of 300 points, whose 30 windows have 10 points each."""
    found = jumps([with_gap(stairs(*parts))], Asked())
    assert all((f.name, f.status, f.decisive) == ("shape", None, False) for f in found)
    assert not any(f.headline for f in found if f.text.startswith("jumps"))
    return [f.text for f in found]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (((150, 0.0), (150, 0.01)), ["jumps by +1.000% at step 151"]),
        (((150, 0.01), (150, 0.0)), ["jumps by -1.000% at step 151"]),
        (((70, 0.0), (230, 0.01)), ["jumps by +1.000% at step 71"]),
        (((60, 0.0), (240, 0.01)), []),
        (((280, 0.0), (20, 0.01)), ["jumps by +1.000% at step 281"]),
        (((290, 0.0), (10, 0.01)), []),
        (((155, 0.0), (145, 0.01)), ["jumps by +1.000% at step 151"]),
        (((100, 0.0), (100, 0.01), (100, 0.03)), ["jumps by +1.000% at step 101", "jumps by +2.000% at step 201"]),
        (((150, 0.0), (20, 0.01), (130, 0.03)), ["jumps by +3.000% at step 151"]),
        (((150, 0.0), (30, 0.01), (120, 0.03)), ["jumps by +3.000% at step 151"]),
        (((150, 0.0), (40, 0.01), (110, 0.03)), ["jumps by +1.000% at step 151", "jumps by +2.000% at step 191"]),
        (((150, 0.0), (10, 0.01), (140, 0.006)), ["jumps by +0.600% at step 151"]),
        (((150, 0.0), (150, 6.5e-6)), ["jumps by +0.001% at step 151"]),
        (((150, 0.0), (150, 5.5e-6)), []),
    ],
)
def test_a_jump_stays_for_three_windows(parts, expected):
    """More than half of it is left in the mean of the three windows after its own. It comes after the first fifth and before the last
    window. Below six millionths it is none."""
    assert at(*parts) == expected


def spike(size: str, first: int, last: int) -> list[str]:
    return [f"{'falls' if size[0] == '-' else 'rises'} by {size} from step {first} to step {last} and comes back"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (((150, 0.0), (10, 0.01), (140, 0.0)), spike("+1.000%", 151, 160)),
        (((150, 0.0), (20, 0.01), (130, 0.0)), spike("+1.000%", 151, 170)),
        (((155, 0.0), (20, 0.01), (125, 0.0)), spike("+1.000%", 151, 180)),
        (((150, 0.0), (30, 0.01), (120, 0.0)), spike("+1.000%", 151, 180)),
        (((150, 0.0), (20, -0.01), (130, 0.0)), spike("-1.000%", 151, 170)),
        (((150, 0.0), (10, 0.01), (140, 0.004)), spike("+1.000%", 151, 160)),
        (((150, 0.0), (10, 2**-7), (140, 2**-8)), spike("+0.781%", 151, 160)),
        (((150, 0.0), (50, 0.01), (100, 0.0)), spike("+1.000%", 151, 200)),
        (((150, 0.01), (50, 0.0), (100, 0.01)), spike("-1.000%", 151, 200)),
        (
            ((100, 0.0), (50, 0.01), (50, 0.03), (100, 0.0)),
            ["jumps by +1.000% at step 101", *spike("+2.000%", 151, 200)],
        ),
        (((70, 0.0), (20, 0.01), (210, 0.0)), spike("+1.000%", 71, 90)),
        (((60, 0.0), (20, 0.01), (220, 0.0)), []),
        (((50, 0.0), (20, 0.01), (230, 0.0)), []),
        (((280, 0.0), (10, 0.01), (10, 0.0)), spike("+1.000%", 281, 290)),
    ],
)
def test_a_spike_is_told_with_its_own_direction(parts, expected):
    """The fall at its end is no jump downwards. What begins in the first fifth is not told; so is the fall of what began there."""
    assert at(*parts) == expected


@pytest.mark.parametrize(
    ("place", "told"), [(60, []), (70, ["jumps by +4.833% at step 71"]), (80, ["jumps by +4.833% at step 81"])]
)
def test_noise_of_the_first_fifth_hides_no_jump_after_it(place, told):
    """Its windows differ by 0.5%, up and down in turn. Later ones do not differ before the jump."""
    early = [(10, 0.005 * (i % 2)) for i in range(7)]
    assert at(*early[: place // 10], *[(10, 0.0)] * (place // 10 - 7), (300 - place, 0.05)) == told


def test_a_rise_that_goes_down_slowly_comes_back_in_its_own_window():
    """Neighboring windows differ by +0.1%, nothing and -0.1%, in turn, so 0.9% is large. The gap rises by more, and falls in two parts."""
    heights = np.resize([0.0, 0.001, 0.001], 30)
    heights[15:17] = 0.0117, 0.005
    [found] = at(*((10, float(height)) for height in heights))
    assert found == "rises by +1.103% from step 151 to step 160 and comes back"


@pytest.mark.parametrize(("size", "told"), [(0.05, True), (0.0026, True), (0.0024, False)])
def test_a_spike_above_the_margin_stands_beside_a_green_verdict(size, told):
    """A spike of 50 steps in the middle of 400 does not reach the tail, so the first sentence says that there was one."""
    gap = stairs((175, 0.0), (50, size), (175, 0.0)) + np.random.default_rng(9).normal(0, 1e-4, 400)
    losses = noisy()
    v = judge([run(losses)], [run((np.asarray(losses) * (1 + gap)).tolist(), "fp8")], Asked())
    assert (v.status, "the gap rises by +" in v.headline) == ("pass", told)
    assert v.headline.startswith("consistent with parity, on one pair")


def test_a_trend_does_not_hide_a_jump():
    """Neighboring windows differ by 0.01% and 0.03%, in turn, which are 0.02% and a deviation of 0.01%."""
    rise = np.cumsum(np.resize([1e-4, 3e-4], 30))
    [found] = at(*((10, float(height)) for height in rise + np.where(np.arange(30) < 15, 0.0, 0.0015)))
    assert found.endswith(" at step 151")


def test_the_jumps_of_all_pairs_are_told():
    first, second = with_gap(stairs((150, 0.0), (150, 0.01))), with_gap(stairs((200, 0.0), (100, -0.01)))
    assert [f.text for f in jumps([first, second], Asked())] == [
        "jumps by +1.000% at step 151",
        "jumps by -1.000% at step 201",
    ]


@pytest.mark.parametrize(
    ("place", "ratio", "spiked"),
    [(150, 2.1, True), (150, 2.0, False), (159, 2.1, True), (160, 2.1, False), (140, 2.1, True), (139, 2.1, False)],
)
def test_a_spike_is_a_norm_of_more_than_twice_the_median_ratio_beside_the_jump(place, ratio, spiked):
    """The window of the jump and the one before it count. The median ratio is 1.5. One norm is missing, and one is high in both runs."""
    norms, theirs = [2.0] * 300, [3.0] * 300
    norms[155], theirs[155], theirs[152], theirs[place] = 20.0, 30.0, math.nan, 3.0 * ratio
    bf16, fp8 = run([2.0] * 300, grad_norm=norms), run([2.0] * 150 + [2.02] * 150, "fp8", grad_norm=theirs)
    said = "with" if spiked else "without"
    assert [f.text for f in jumps([align(bf16, fp8)], Asked())] == [
        f"jumps by +1.000% at step 151, {said} a spike of the gradient norm"
    ]
