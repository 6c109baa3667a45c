"""The whole verdict on imported runs: every line of it, its headline, its exit status and what logs cannot show."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from fp8parity.judging.pair import PairVerdict, judge
from fp8parity.judging.pair.finding import PUBLISHED, Asked
from plain_runs import noisy, run

BF16 = noisy()
CLOSE = np.random.default_rng(9).normal(0, 1e-4, 400)
SOURCE = "GPT-2 class, 13 + 13 runs of modded-nanogpt: 0.04 to 0.06%"
ASSUMED = f"the interval holds a standard deviation of 0.060% between equal runs (assumed: {SOURCE})"
UNLOGGED = "learning rates not logged; tokens or samples a step not logged"
FLAT = ("equal loss", "cannot say: BF16's loss is flat in the tail")
ALWAYS = [
    "that FP8 kernels ran at all (a silent fall-back to BF16 looks like parity)",
    "gradients, codes and scales",
    "optimizer state",
    "that nothing else changed between the runs, such as versions or the parallel layout",
]
NEVER_LOGGED = ["learning rates (not logged)", "tokens a step (not logged)", "gradient norms (not logged)"]
SPREAD = "the spread between equal runs of this model (assumed; --repeat RUN measures it)"


def fp8(gap: float = 0.0, noise: int = 1) -> list[float]:
    """BF16's losses with noise of 0.01% and a gap. Another noise has the same values in another order."""
    return (np.asarray(BF16) * (1 + np.roll(CLOSE, noise)) * (1 + gap)).tolist()


def judged(gap: float = 0.0, asked: Asked | None = None, steps: int = 400, **logged: Any) -> PairVerdict:
    return judge([run(BF16[:steps], **logged)], [run(fp8(gap)[:steps], "fp8", **logged)], asked or Asked())


def test_every_line_of_a_sound_pair():
    v = judged(asked=Asked(recipe="te-block"))
    assert (v.status, v.code, v.headline, v.margin) == ("pass", 0, "consistent with parity, on one pair", 0.0025)
    assert (v.bf16, v.fp8, v.formats) == (["bf16"], ["fp8"], ["made up"])
    assert v.gap is not None
    moved = "the gap moved by +0.001% [-0.102%, +0.103%] from the third to the last quarter"
    assert v.lines == [
        ("pair", f"{UNLOGGED}; correlation of the detrended losses 1.000"),
        ("grain", "losses written in full"),
        ("holes", "none: every point is there and finite"),
        ("tail gap", f"{v.gap.text} over the last 80 points, margin 0.25%; {ASSUMED}"),
        ("shape", f"constant within noise: {moved} (+0.0061% [-1.0207%, +1.0330%] per 1,000 steps)"),
        ("gradient norm", "not logged"),
        FLAT,
    ]
    assert v.unchecked == [*ALWAYS, *NEVER_LOGGED, SPREAD]
    assert v.command == "pytest suites/numerics suites/convergence --model micro --recipe te-block"
    assert v.curve == [(i + 1, a, b) for i, (a, b) in enumerate(zip(BF16, fp8(), strict=True))]
    assert v.gap.text == f"{v.gap.mean:+.3%} [{v.gap.low:+.3%}, {v.gap.high:+.3%}]" and v.gap.n == 1


def test_what_is_logged_is_not_named_as_unchecked():
    logged: dict[str, Any] = {"learning_rate": [1.0] * 400, "batch": [8.0] * 400, "grad_norm": [1.0] * 400}
    assert judged(**logged).unchecked == [*ALWAYS, SPREAD]
    assert judged(grad_norm=[1.0] * 400).unchecked == [*ALWAYS, *NEVER_LOGGED[:2], SPREAD]


FAULT = "the loss is lower than BF16's by more than 3 margins: such a gain is a fault"


@pytest.mark.parametrize(
    ("gap", "status", "code", "headline"),
    [
        (0.005, "fail", 1, "the loss is higher than BF16's by more than the margin"),
        (0.0025, "inconclusive", 2, "the interval reaches beyond the margin; give more seeds or a repeat of BF16"),
        (-0.0025, "inconclusive", 2, "the interval reaches beyond the margin; give more seeds or a repeat of BF16"),
        (-0.005, "improved", 0, "the loss is lower than BF16's by more than the margin"),
        (-0.008, "improved", 0, "the loss is lower than BF16's by more than the margin"),
        (-0.009, "fail", 1, FAULT),
    ],
)
def test_the_place_of_the_tail_gap_in_words(gap, status, code, headline):
    v = judged(gap)
    assert (v.status, v.code, v.headline) == (status, code, headline)
    assert dict(v.lines)["tail gap"].endswith(f" over the last 80 points, margin 0.25%; {ASSUMED}")


def test_the_gap_is_that_of_the_tail_alone():
    early = np.asarray(BF16) * (1 + CLOSE) * np.where(np.arange(400) < 320, 1.01, 1.0)
    v = judge([run(BF16)], [run(early.tolist(), "fp8")], Asked())
    assert v.status == "pass" and v.gap is not None and v.gap.mean == pytest.approx(0.0, abs=1e-4)


def test_several_pairs_are_told_as_seeds():
    other = noisy(seed=4)
    theirs = (np.asarray(other) * (1 + CLOSE)).tolist()
    v = judge([run(BF16), run(other, "b2")], [run(fp8(), "f1"), run(theirs, "f2", format="another")], Asked())
    assert (v.status, v.headline, v.bf16, v.fp8) == (
        "pass",
        "parity with BF16, on 2 pairs",
        ["bf16", "b2"],
        ["f1", "f2"],
    )
    assert v.formats == ["made up", "another"]
    assert v.unchecked == [*ALWAYS, *NEVER_LOGGED]
    text = dict(v.lines)["tail gap"]
    said = f"over the last 80 points, margin 0.25%; the interval holds a standard deviation of 0.060% between seeds (assumed: {SOURCE})"
    assert text.endswith(said)
    assert [name for name, _ in v.lines].count("pair") == 2


def test_a_metric_that_one_of_several_pairs_lacks_is_unchecked():
    logged: dict[str, Any] = {"learning_rate": [1.0] * 400, "batch": [8.0] * 400, "grad_norm": [1.0] * 400}
    other = [x + 1 for x in BF16]
    v = judge(
        [run(BF16, **logged), run(other)], [run(fp8(), "f1", **logged), run([x + 1 for x in fp8()], "f2")], Asked()
    )
    assert v.unchecked == [*ALWAYS, *NEVER_LOGGED]


def test_a_repeat_of_bf16_measures_the_spread():
    """The repeat lies 0.2% above BF16 in its tail of 80 points alone."""
    again = np.asarray(BF16) * np.where(np.arange(400) < 320, 1.0, 1.002)
    v = judge([run(BF16)], [run(fp8(), "fp8")], Asked(), [run(again.tolist(), "again")])
    assert v.headline == "the interval reaches beyond the margin; give more seeds or a repeat of BF16"
    said = "the interval holds a standard deviation of 0.200% between equal runs (measured: 1 repeat of BF16)"
    assert dict(v.lines)["tail gap"].endswith(f" over the last 80 points, margin 0.25%; {said}")
    assert v.unchecked == [*ALWAYS, *NEVER_LOGGED]
    near = judge([run(BF16)], [run(fp8(), "fp8")], Asked(), [run(fp8(noise=2), "again")])
    assert (near.status, near.headline) == ("pass", "parity with BF16, on one pair and repeats of BF16")


@pytest.mark.parametrize(("fp8s", "said"), [([math.nan, 1.0] * 200, True), ([math.nan] * 398 + [1.0] * 2, False)])
def test_metrics_that_were_logged_at_other_points_are_not_checked(fp8s, said):
    """In one of two pairs. A point that both runs have is compared."""
    rates = [1.0, math.nan] * 200
    first, second = run(OTHER, learning_rate=rates), run([x * 1.0001 for x in OTHER], "fp8", learning_rate=fp8s)
    whole = run(BF16, learning_rate=[1.0] * 400), run(fp8(), "fp8", learning_rate=[1.0] * 400)
    v = judge([whole[0], first], [whole[1], second], Asked())
    assert ("learning rates (not logged at the same points)" in v.unchecked) == said
    assert ("learning rates equal at the 1 of 400 points at which both runs logged them" in v.lines[1][1]) != said
    assert v.status == "pass"


def test_a_repeat_that_is_no_pair_with_bf16_is_refused():
    apart = f"correlation of the detrended losses 0.101, below 0.4: other batches; {UNLOGGED}"
    with pytest.raises(ValueError, match=f"^{re.escape(f'again is no repeat of bf16: {apart}')}$"):
        judge([run(BF16)], [run(fp8(), "fp8")], Asked(), [run(noisy(seed=3), "again")])
    with pytest.raises(ValueError, match=r"^bf16 and again: the first ends at step 400, the second at 300; "):
        judge([run(BF16)], [run(fp8(), "fp8")], Asked(), [run(BF16[:300], "again")])
    whole = judge([run(BF16)], [run(fp8(), "fp8")], Asked(until=300), [run(fp8(noise=2)[:300], "again")])
    assert whole.status == "pass"


def test_each_fp8_run_needs_its_bf16_run():
    says = "1 BF16 runs and 2 FP8 runs: each FP8 run needs the BF16 run of its seed, in the same order"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        judge([run(BF16)], [run(fp8()), run(fp8())], Asked())


@pytest.mark.parametrize(("steps", "lines"), [(20, 7), (19, 3)])
def test_a_gap_needs_two_points_in_each_batch(steps, lines):
    v = judged(steps=steps)
    assert (v.status, len(v.lines), v.gap is None) == ("inconclusive", lines, lines == 3)


@pytest.mark.parametrize(
    ("changes", "gap", "status", "headline"),
    [
        ({"not_finite": [5]}, 0.0, "fail", "FP8's loss is not finite at step 5 (1 in all)"),
        (
            {"not_finite": [5], "learning_rate": [2.0] * 400},
            0.0,
            "fail",
            "FP8's loss is not finite at step 5 (1 in all)",
        ),
        ({"learning_rate": [2.0] * 400}, 0.02, "inconclusive", "these two runs are not shown to be a pair"),
        ({"learning_rate": [2.0] * 400}, -0.02, "inconclusive", "these two runs are not shown to be a pair"),
        ({"hides": "it does"}, 0.0, "inconclusive", "a NaN may be hidden in the file"),
        ({"hides": "it does"}, -0.005, "inconclusive", "a NaN may be hidden in the file"),
        ({"hides": "it does"}, 0.005, "fail", "the loss is higher than BF16's by more than the margin"),
    ],
)
def test_which_of_several_findings_decides(changes, gap, status, headline):
    """What shows that the runs cannot be compared comes before the gap, and a NaN of FP8 before that. Then the worst finding decides."""
    v = judge([run(BF16, learning_rate=[1.0] * 400)], [run(fp8(gap), "fp8", **changes)], Asked())
    assert (v.status, v.headline) == (status, headline)


def test_equal_losses_come_before_everything():
    v = judge([run(BF16)], [run(BF16, "fp8", not_finite=[5])], Asked())
    assert v.headline == "the losses equal BF16's to the bit: nothing was quantized, or one run was named twice"
    assert v.lines[0] == ("pair", v.headline) and v.code == 1


def test_what_is_asked_for_unless_it_is_said():
    made = Asked()
    assert (made.margin, made.tail, made.alpha, made.until, made.spread, made.speed_up) == (
        0.0025,
        0.2,
        0.05,
        None,
        None,
        None,
    )
    assert (made.unfiltered, made.recipe, made.repeats) == (False, "te-current", ())
    assert PUBLISHED.source == SOURCE


@pytest.mark.parametrize(
    ("inside", "wrong", "says"),
    [
        ({"margin": 0.99}, {"margin": 1.0}, "a margin of 100.00% makes no sense; 0.25% is usual"),
        ({"margin": 1e-9}, {"margin": 0.0}, "a margin of 0.00% makes no sense; 0.25% is usual"),
        ({"tail": 0.5}, {"tail": 0.51}, "the tail must be at most half of the run, not 51%"),
        ({"tail": 0.01}, {"tail": 0.0}, "the tail must be at most half of the run, not 0%"),
        (
            {"spread": 1e-9},
            {"spread": 0.0},
            "equal runs on a GPU never end equal to the bit for long; give a spread above 0",
        ),
        (
            {"spread": 0.5},
            {"spread": math.nan},
            "equal runs on a GPU never end equal to the bit for long; give a spread above 0",
        ),
        ({"spread": 0.99}, {"spread": 1.0}, "a spread of 100% makes no sense; 0.06% is usual"),
        ({"speed_up": 0.01}, {"speed_up": 0.0}, "a speed-up of 0 makes no sense; 1.2 means that FP8 is 20% faster"),
        (
            {"speed_up": 9.0},
            {"speed_up": math.nan},
            "a speed-up of nan makes no sense; 1.2 means that FP8 is 20% faster",
        ),
        (
            {"speed_up": 9.0},
            {"speed_up": math.inf},
            "a speed-up of inf makes no sense; 1.2 means that FP8 is 20% faster",
        ),
    ],
)
def test_the_edges_of_what_makes_sense(inside, wrong, says):
    [(name, value)] = inside.items()
    assert getattr(Asked(**inside), name) == value
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        Asked(**wrong)


OTHER = noisy(400, seed=1)
A, B, C, D = run(BF16, "a"), run(OTHER, "b"), run(fp8(), "c"), run([x * 1.0001 for x in OTHER], "d")


@pytest.mark.parametrize(
    ("bf16", "quantized", "repeats", "says"),
    [
        ([A, A], [C, D], [], "a and a hold the same losses: a run was named twice, and each seed is one run"),
        (
            [A, B, run(OTHER, "copy")],
            [C, D, D],
            [],
            "b and copy hold the same losses: a run was named twice, and each seed is one run",
        ),
        ([A, B], [C, C], [], "c and c hold the same losses: a run was named twice, and each seed is one run"),
        ([A], [C], [A], "a is named twice: a repeat of BF16 is another run"),
        (
            [A],
            [C],
            [run(fp8(noise=2), "e"), run(fp8(noise=2), "e")],
            "e is named twice: a repeat of BF16 is another run",
        ),
    ],
    ids=["BF16", "a copy", "FP8", "as its repeat", "a repeat"],
)
def test_a_run_that_is_named_twice_is_refused(bf16, quantized, repeats, says):
    """It would stand for a second seed, or for a spread of zero."""
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        judge(bf16, quantized, Asked(), repeats)
