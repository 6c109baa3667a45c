"""The shape and the cost of the gap of two imported runs: growing, shrinking, opening in the decay, jumps, steps until equal loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
from curves import STEPS, curve, judged, lines
from fp8parity.judging.pair.finding import PUBLISHED, Asked
from fp8parity.judging.pair.noise import interval
from fp8parity.judging.stats import batch_error
from log_files import Curve, nanogpt


def test_a_growing_gap_is_red_whatever_its_size(tmp_path):
    """It ends at +0.5% where the margin is 2%."""
    v = judged(tmp_path, curve(), curve(chaos=1).with_gap(np.linspace(0, 0.005, STEPS).tolist()), Asked(margin=0.02))
    assert (v.status, v.headline) == ("fail", "the gap is growing")
    assert "+1.2" in lines(v, "shape") and "per 1,000 steps" in lines(v, "shape"), "0.5% in 400 steps"


def test_a_shrinking_gap_is_named(tmp_path):
    v = judged(tmp_path, curve(), curve(chaos=1).with_gap(np.linspace(0.02, 0.0, STEPS).tolist()), Asked(margin=0.01))
    assert lines(v, "shape").startswith("shrinking")
    assert v.status == "pass"


def test_a_gap_that_opens_in_the_decay_is_red(tmp_path):
    late = [0.0] * (STEPS * 4 // 5) + [0.005] * (STEPS // 5)
    v = judged(tmp_path, curve(decay_from=0.8), curve(chaos=1, decay_from=0.8).with_gap(late), Asked(margin=0.02))
    assert (v.status, v.code) == ("fail", 1)
    assert "opening in the decay" in lines(v, "shape")
    assert "decay" not in lines(judged(tmp_path, curve(), curve(chaos=1)), "shape"), (
        "in a cosine schedule all of the run decays"
    )


def test_a_jump_is_placed_and_compared_with_the_gradient_norm(tmp_path):
    late = [0.0] * 200 + [0.01] * 200
    spiked = curve(chaos=1).with_gap(late)
    spiked.grad_norm[200] *= 5
    text = lines(judged(tmp_path, curve(), spiked), "shape")
    assert text.count("jumps") == 1
    assert "jumps by +0.997%" in text and "at step 196, with a spike" in text, (
        "the window from step 196 to 208 holds step 201"
    )
    assert "jumps" not in lines(judged(tmp_path, curve(), curve(chaos=1)), "shape")


@pytest.mark.parametrize(("first", "seen"), [(6, False), (7, True), (28, True), (29, False)])
def test_a_jump_needs_a_first_fifth_before_it_and_a_window_after_it(tmp_path, first, seen):
    """The 30 windows have 13 steps. The gap opens with the window ``first``; in the last one, nobody can see whether it stays."""
    start = 13 * first
    text = lines(judged(tmp_path, curve(), curve(chaos=1).with_gap([0.0] * start + [0.01] * (STEPS - start))), "shape")
    assert ("jumps" in text, f"at step {start + 1}, without a spike" in text) == (seen, seen), text


@pytest.mark.parametrize(
    ("size", "words"),
    [(0.0017, ""), (0.0019, "jumps by +0.190% at step 183"), (-0.0019, "jumps by -0.190% at step 183")],
)
def test_a_jump_is_above_six_standard_deviations_of_the_differences(tmp_path, size, words):
    """Neighboring windows differ by +0.02%, nothing and -0.02%, in turn. Six robust deviations are 6 x 1.4826 x 0.02% = 0.178%."""
    gap = np.repeat(np.resize([0.0, 2e-4, 2e-4], 31), 13)[:STEPS] + np.repeat([0.0, size], [182, STEPS - 182])
    text = lines(judged(tmp_path, curve(), curve().with_gap(gap.tolist())), "shape")
    assert words in text and ("jumps" in text) == bool(words), text


def test_a_short_run_has_windows_of_one_step(tmp_path):
    v = judged(tmp_path, curve(steps=40), curve(steps=40, chaos=1).with_gap([0.0] * 21 + [0.01] * 19))
    assert "jumps by +1.0" in lines(v, "shape") and "at step 22," in lines(v, "shape")


def test_gradient_norms_that_are_off_from_the_start(tmp_path):
    off = replace(curve(chaos=1), grad_norm=[1.2 * g for g in curve().grad_norm])
    text = lines(judged(tmp_path, curve(), off), "gradient norm")
    assert text.startswith("FP8 / BF16: 1.200 in the first tenth, 1.200 in the tail") and "lost microbatch" in text


def falling(gap: float = 0.0, seconds: float = 0.5) -> Curve:
    """A loss that falls by 0.004 nats a step, from 4.6 to 3.0."""
    noise = np.random.default_rng(0).normal(0, 0.01, STEPS)
    made = replace(curve(), loss=(4.6 - 0.004 * np.arange(STEPS) + noise).tolist(), seconds=seconds)
    return made.with_gap(gap)


def test_steps_until_equal_loss_and_the_speed_up_that_they_eat(tmp_path):
    """+1% of 3.16 nats at 0.004 nats a step is 8 steps of 400: 2%. Of a speed-up of 1.25 they leave 1.225."""
    text = lines(judged(tmp_path, falling(), falling(0.01, seconds=0.4)), "equal loss")
    assert text.startswith("FP8 reaches BF16's loss 8 steps later, 1.29e+05 tokens: 2.0%")
    assert "a speed-up of 1.250x is 1.226x at equal loss, 10% of it is eaten" in text
    assert "cannot say" in lines(
        judged(tmp_path, replace(curve(), loss=[2.5 + 0.01 * (s % 7) for s in range(STEPS)]), curve()), "equal loss"
    )


def test_gradient_norms_that_nobody_logged_are_said_to_be_missing(tmp_path):
    assert lines(judged(tmp_path, curve(), curve(chaos=1), write=nanogpt), "gradient norm") == "not logged"


def test_a_learning_rate_of_zero_has_no_decay(tmp_path):
    """It would seem to begin at the end of the run."""
    flat = [0.0] * STEPS
    v = judged(tmp_path, replace(curve(), learning_rate=flat), replace(curve(chaos=1), learning_rate=flat))
    assert "decay" not in lines(v, "shape")


def test_one_pair_has_the_degrees_of_freedom_of_welch_and_satterthwaite():
    """The noise along the curve (9 degrees of freedom from 10 batches) and the spread between runs (24) are added."""
    gaps = np.random.default_rng(3).normal(0.001, 0.01, 400)
    error, df = batch_error(gaps)
    found = interval([gaps], Asked(spread=0.0006))
    variance = error**2 + 0.0006**2
    freedom = variance**2 / (error**4 / df + 0.0006**4 / PUBLISHED.df)
    assert 0.2 < error / 0.0006 < 5, "both parts count"
    assert found.high - found.mean == pytest.approx(scipy.stats.t.ppf(0.95, freedom) * variance**0.5, rel=1e-9)


def dipped(where: int, length: int, depth: float = -0.02, grows: float = 0.0) -> list[float]:
    """A gap of 0.1% that grows evenly, with a dip (or a spike) of so many steps from step ``where`` on."""
    gap = np.linspace(0.001, 0.001 + grows, STEPS)
    gap[where : where + length] += depth
    return gap.tolist()


@pytest.mark.parametrize(
    ("where", "length", "depth"), [(220, 20, -0.02), (240, 35, -0.02), (320, 20, 0.02), (320, 45, 0.02)]
)
def test_a_sudden_move_that_comes_back_is_no_growth(tmp_path, where, length, depth):
    """A dip in the third quarter, from step 200 to 300, or a spike in the last one: the last quarter is 0.4% higher or more."""
    v = judged(tmp_path, curve(), curve(chaos=1).with_gap(dipped(where, length, depth)), Asked(margin=0.03))
    assert "comes back" in lines(v, "shape") and "constant within noise" in lines(v, "shape"), lines(v, "shape")
    assert v.status == "pass"


@pytest.mark.parametrize("depth", [0.0, -0.02, 0.02])
def test_growth_around_a_sudden_move_is_red(tmp_path, depth):
    """A rise in the third quarter does not hide it either."""
    v = judged(tmp_path, curve(), curve(chaos=1).with_gap(dipped(240, 30, depth, grows=0.005)), Asked(margin=0.02))
    assert (v.status, v.headline) == ("fail", "the gap is growing")


def test_a_dip_of_most_of_a_quarter_counts(tmp_path):
    """What is left of the quarter would be compared with too little."""
    v = judged(tmp_path, curve(), curve(chaos=1).with_gap(dipped(202, 94)), Asked(margin=0.02))
    assert "comes back" in lines(v, "shape")
    assert (v.status, v.headline) == ("fail", "the gap is growing")
