"""The verdict on two imported runs: pair or not, grain, holes, tail gap, shape, cost."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from curves import HF, STEPS, curve, judged, lines, run_of
from fp8parity import runs
from fp8parity.judging.pair import judge
from fp8parity.judging.pair.finding import PUBLISHED, Asked
from fp8parity.judging.stats import batch_error
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from log_files import WRITERS, Curve, curve_of, megatron, nanochat, nanotron, plain_csv

ROOT = Path(__file__).parents[1]


@pytest.fixture
def verdict(tmp_path):
    """Judges a BF16 curve and an FP8 curve that were written as AutoModel does."""
    return partial(judged, tmp_path)


def test_a_sound_pair_is_consistent_with_parity_and_no_more(verdict):
    v = verdict(curve(), curve(chaos=1))
    assert (v.status, v.code, v.headline) == ("pass", 0, "consistent with parity, on one pair")
    assert v.gap is not None
    assert abs(v.gap.mean) < 1e-4 and 0.0009 < v.gap.high - v.gap.mean < 0.0012, (
        "the published spread of 0.06% is in it"
    )
    assert "0.060% between equal runs (assumed: GPT-2 class" in lines(v, "tail gap")
    assert list(dict.fromkeys(n for n, _ in v.lines)) == [
        "pair",
        "grain",
        "holes",
        "tail gap",
        "shape",
        "gradient norm",
        "equal loss",
    ]
    assert "--repeat RUN measures it" in v.unchecked[-1]


@pytest.mark.parametrize(
    ("gap", "status", "code"),
    [(0.005, "fail", 1), (0.0025, "inconclusive", 2), (-0.004, "improved", 0), (-0.02, "fail", 1)],
)
def test_the_gap_and_the_margin(gap, status, code, verdict):
    v = verdict(curve(), curve(chaos=1).with_gap(gap))
    assert (v.status, v.code) == (status, code)
    assert v.gap is not None and v.gap.mean == pytest.approx(gap, abs=1e-4)


def test_other_batches_are_no_pair(verdict):
    v = verdict(curve(), curve(seed=5))
    assert (v.status, v.code) == ("inconclusive", 2)
    assert "other batches" in lines(v, "pair")
    assert verdict(curve(), curve(seed=5).with_gap(0.05)).status == "inconclusive", "no gap is judged without a pair"


def test_other_batches_under_a_moving_average_are_no_pair(verdict):
    assert "other batches" in lines(verdict(curve(), curve(seed=5), write=nanochat), "pair")
    assert verdict(curve(), curve(chaos=1), write=nanochat).status == "pass"


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_a_trend_does_not_make_a_pair(seed, verdict):
    """A moving average falls along a curve, and so do its first differences: on these seeds they correlate above 0.6."""
    v = verdict(curve(steps=160), curve(seed, steps=160), write=nanochat)
    halves = np.asarray(v.curve)[80:, 1:]
    assert np.corrcoef(np.diff(np.log(halves), axis=0).T)[0, 1] > 0.6
    assert "other batches" in lines(v, "pair") and v.code == 2


def averaged(made: Curve, every: int) -> Curve:
    """What Megatron prints: the mean of the losses since the last log."""
    means = np.asarray(made.loss).reshape(-1, every).mean(1).tolist()
    return replace(made, loss=means, grad_norm=made.grad_norm[::every], learning_rate=made.learning_rate[::every])


@pytest.mark.parametrize(("seed", "gap", "code"), [(0, 0.0, 0), (0, 0.005, 1), (5, 0.0, 2)])
def test_means_between_logs(seed, gap, code, verdict):
    v = verdict(averaged(curve(steps=2000), 10), averaged(curve(seed, 2000, chaos=1), 10).with_gap(gap), write=megatron)
    assert v.code == code
    assert "a logged loss is a mean since the last log" in lines(v, "holes")


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"learning_rate": [1e-3] * STEPS}, "learning rates differ from step 10 on"), ({"tokens": 8192}, "a step differ")],
)
def test_another_schedule_or_batch_is_no_pair(changes, words, verdict):
    v = verdict(curve(), replace(curve(chaos=1), **changes))
    assert (v.status, v.code) == ("inconclusive", 2)
    assert words in lines(v, "pair")


def test_three_digits_are_enough_for_a_long_tail_and_not_for_a_narrow_margin(verdict):
    """Nanotron prints 2.13. The noise of the loss is 0.06, so the rounding averages out."""
    assert verdict(curve(), curve(chaos=1), write=nanotron).status == "pass"
    v = verdict(curve(), curve(chaos=1), Asked(margin=0.0005, spread=1e-5), write=nanotron)
    assert (v.status, v.code) == ("inconclusive", 2)
    assert "too coarse for a margin of 0.05%" in lines(v, "grain")
    assert "a standard deviation of 0.001% between equal runs (assumed: the value of --spread)" in lines(v, "tail gap")
    wide = verdict(curve(), curve(chaos=1).with_gap(0.01), Asked(margin=0.0005), write=nanotron)
    assert (wide.status, wide.code) == ("fail", 1), "a gap that three digits do show"


def test_digits_that_do_not_average_out(verdict):
    """Losses that do not vary from step to step are all rounded the same way."""
    flat = [2.134 - 1e-6 * s + 0.0005 * (s % 2) for s in range(STEPS)]
    made = replace(curve(), loss=flat)
    assert "the smallest gap that the file can show is 0.46" in lines(verdict(made, made, write=nanotron), "grain")


def test_too_few_points_decide_nothing(verdict):
    v = verdict(curve(steps=20), curve(steps=20, chaos=1))
    assert (v.status, v.code) == ("inconclusive", 2)
    assert "only 10 points in the tail, 20 are needed" in lines(v, "grain")


def test_nan_of_fp8_is_red_and_of_bf16_undecided(verdict, tmp_path):
    broken = curve(chaos=1)
    broken.loss[300] = math.nan
    v = verdict(curve(), broken)
    assert (v.status, v.headline) == ("fail", "FP8's loss is not finite at step 301 (1 in all)")
    again = judge([run_of(broken, tmp_path / "c")], [run_of(curve(), tmp_path / "d")], Asked())
    assert (again.status, again.code) == ("inconclusive", 2)


def test_nan_is_red_even_if_the_runs_are_no_pair():
    v = judge([runs.read(HF / "every-ten")], [runs.read(HF / "nan")], Asked())
    assert (v.status, v.code) == ("fail", 1)
    assert v.headline == "FP8's loss is not finite at step 60 (15 in all)"


def test_a_gradient_norm_that_is_not_finite_is_named(verdict):
    broken = curve(chaos=1)
    broken.grad_norm[100] = math.inf
    v = verdict(curve(), broken)
    assert (v.status, v.headline) == ("fail", "FP8's gradient norm is not finite at step 101 (1 in all)")
    assert verdict(broken, broken.with_gap(1e-5)).status == "inconclusive", "BF16 has it, too"


def test_losses_that_are_equal_to_the_bit_are_red(verdict):
    """FP8 never gives the same losses: nothing was quantized, or one run was named twice."""
    v = verdict(curve(), curve())
    assert (v.status, v.code) == ("fail", 1)
    assert "equal BF16's to the bit" in v.headline
    v = verdict(curve(), curve(), write=nanotron)
    assert (v.status, v.code) == ("inconclusive", 2), "three digits may hide the difference"


def test_a_hidden_nan_is_undecided_unless_the_filter_was_off(verdict, tmp_path):
    hiding = run_of(curve(), tmp_path / "a").model_copy(update={"hides": "its writer replaces a NaN"})
    other = run_of(curve(chaos=1), tmp_path / "b")
    assert judge([other], [hiding], Asked()).code == 2
    assert judge([other], [hiding], Asked(unfiltered=True)).status == "pass"


def test_two_real_runs_of_the_trainer():
    v = judge([runs.read(HF / "fp32")], [runs.read(HF / "bf16")], Asked())
    assert v.status == "pass"
    assert "detrended losses 1.000" in lines(v, "pair")
    assert v.formats == ["trainer_state.json"]


def test_more_seeds_measure_their_own_spread(tmp_path):
    seeds = range(4)
    bf16 = [run_of(curve(s), tmp_path / f"b{s}") for s in seeds]
    near, far = (
        [run_of(curve(s, chaos=1).with_gap(wide * (s - 1.5)), tmp_path / f"{wide}{s}") for s in seeds]
        for wide in (0.0, 0.004)
    )
    v = judge(bf16, near, Asked())
    assert (v.status, v.headline) == ("pass", "parity with BF16, on 4 pairs")
    one = judge(bf16[:1], near[:1], Asked())
    assert v.gap and one.gap and v.gap.high - v.gap.mean < 0.6 * (one.gap.high - one.gap.mean)
    assert judge(bf16, far, Asked()).status == "inconclusive", "seeds that lie 0.5% apart decide nothing"


def test_a_repeat_of_bf16_replaces_the_assumption(tmp_path, verdict):
    equal, apart = (run_of(curve(chaos=2).with_gap(g), tmp_path / f"{g}") for g in (0.0, 0.003))
    v = verdict(curve(), curve(chaos=1), repeats=[equal])
    assert (v.status, v.headline) == ("pass", "parity with BF16, on one pair and repeats of BF16")
    assert "measured: 1 repeat of BF16, pooled with GPT-2 class" in lines(v, "tail gap")
    wide = judge([run_of(curve(), tmp_path / "e")], [run_of(curve(chaos=1), tmp_path / "f")], Asked(), repeats=[apart])
    assert wide.status == "inconclusive" and "measured: 1 repeat of BF16)" in lines(wide, "tail gap")
    with pytest.raises(ValueError, match="is no repeat of"):
        verdict(curve(), curve(chaos=1), repeats=[run_of(curve(seed=7), tmp_path / "g")])


def test_the_error_of_a_mean_holds_what_correlates():
    """AR(1) with 0.9: the error of a mean of 400 values is 4.4 times that of independent values."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        x = np.zeros(400)
        for i in range(1, 400):
            x[i] = 0.9 * x[i - 1] + rng.normal()
        found.append(batch_error(x)[0])
    true = 1 / 0.1 / math.sqrt(400)
    assert 0.75 * true < float(np.median(found)) < 1.1 * true


def test_runs_that_do_not_fit_are_refused(tmp_path):
    whole, short = run_of(curve(), tmp_path / "a"), run_of(curve(steps=300), tmp_path / "b")
    with pytest.raises(ValueError, match="ends at step 400, the second at 300; --until 300"):
        judge([whole], [short], Asked())
    with pytest.raises(ValueError, match="counts steps, the second samples"):
        judge([whole], [run_of(curve(), tmp_path / "c", WRITERS["DeepSpeed, CSV"])], Asked())
    with pytest.raises(ValueError, match="logged every 1 steps, the second every 10 steps"):
        judge([runs.read(HF / "fp32")], [runs.read(HF / "every-ten")], Asked())
    with pytest.raises(ValueError, match="each FP8 run needs the BF16 run of its seed"):
        judge([whole], [whole, whole], Asked())
    with pytest.raises(ValueError, match="a loss is not positive"):
        judge(
            [run_of(curve().with_gap(-2), tmp_path / "d", plain_csv)],
            [run_of(curve().with_gap(-2), tmp_path / "e", plain_csv)],
            Asked(),
        )


def test_until_judges_the_part_that_both_have(tmp_path):
    fp8 = curve(chaos=1)
    cut = replace(fp8, loss=fp8.loss[:300], grad_norm=fp8.grad_norm[:300], learning_rate=fp8.learning_rate[:300])
    v = judge([run_of(curve(), tmp_path / "a")], [run_of(cut, tmp_path / "b")], Asked(until=300))
    assert v.status == "pass" and v.curve[-1][0] == 300


def test_this_suites_own_pairs(tmp_path):
    """Sound at micro on a CPU; with +0.5% they fail; beside another seed they are no pair."""
    found = [r for r in load_records(ROOT / "golden/records/micro-xeon.zip") if isinstance(r, Trajectory)]
    bf16 = {r.seed: run_of(curve_of(r), tmp_path / f"bf16-{r.seed}") for r in found if r.cell.is_control}
    fp8 = [r for r in found if r.cell.recipe in ("te-current", "ao-rowwise")]
    assert len(fp8) >= 4
    for i, r in enumerate(fp8):
        sound, gap = (run_of(curve_of(r).with_gap(g), tmp_path / f"{i}-{g}") for g in (0.0, 0.005))
        others = [k for k in bf16 if k != r.seed]
        assert [
            judge([bf16[s]], [x], Asked()).code for s, x in ((r.seed, sound), (r.seed, gap), (others[0], sound))
        ] == [0, 1, 2]


def test_the_assumption_is_the_published_one():
    assert (PUBLISHED.sd, PUBLISHED.df) == (0.0006, 24)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"margin": 0.0}, "a margin of 0.00%"), ({"tail": 0.8}, "at most half of the run"), ({"spread": 0.0}, "above 0")],
)
def test_what_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Asked(**wrong)
