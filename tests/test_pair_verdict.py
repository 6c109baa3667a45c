"""The verdict on imported runs: its status and exit status, which finding decides, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from curves import HF, STEPS, curve, exit_code, gap_of, judge, lines, near, noisy, run, run_of
from fp8parity import runs
from fp8parity.judging.pair import PairOptions
from fp8parity.judging.pair import judge as judge_pairs
from fp8parity.judging.pair import pairs as paired
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.report.pair import PairReport
from fp8parity.runs.run import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import curve_of

ROOT = Path(__file__).parents[1]


def plain(
    gap: float | list[float] = 0.0, options: PairOptions | None = None, repeats: Sequence[Run] = (), **fp8: object
) -> Verdict:
    bf16 = run(noisy(), learning_rate=[1.0] * STEPS)
    return judge([bf16], [run(near(gap), "fp8", **fp8)], options or PairOptions(), repeats)


@pytest.mark.parametrize(("gap", "code"), [(0.0, 0), (0.005, 1), (0.0025, 2), (-0.0025, 2), (-0.005, 1)])
def test_gap_at_the_margin_gives_the_status(gap, code):
    v = plain(gap)
    assert (v.status, exit_code(v)) == (["pass", "fail", "inconclusive"][code], code)
    assert (found := gap_of(v)) and found.mean == pytest.approx(gap, abs=1e-4)


def test_sound_pair_answers_every_question(tmp_path):
    pair = [run_of(curve(), tmp_path / "bf16")], [run_of(curve(chaos=1), tmp_path / "fp8")]
    given = paired(*pair, PairOptions(recipe="te-block"))
    v = judge_pairs(given)
    facts = PairReport(given, v, "", "").facts
    assert v.headline.startswith("consistent with parity, on one pair; noise between seeds assumed 0.06%")
    names = [
        "read",
        "read",
        "pair",
        "pair",
        "pair",
        "grain",
        "holes",
        "tail gap",
        "shape",
        "gradient norm",
        "equal loss",
    ]
    assert [n for n, _ in v.lines] == names
    assert facts["command"] == "pytest suites/numerics suites/convergence --model micro --recipe te-block"
    assert (gap := gap_of(v)) and 0.0009 < gap.high - gap.mean < 0.0012, "the published 0.06% is in it"


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_other_batches_are_inconclusive_whatever_the_gap(gap):
    v = judge([run(noisy())], [run(near(gap, seed=5), "fp8")], PairOptions())
    assert (v.status, exit_code(v)) == ("inconclusive", 2) and "other batches" in lines(v, "pair")


@pytest.mark.parametrize(
    ("gap", "fp8", "status", "headline"),
    [
        (0.0, {"not_finite": [5], "learning_rate": [2.0] * STEPS}, "fail", "FP8's loss is not finite at step 5"),
        (0.02, {"learning_rate": [2.0] * STEPS}, "inconclusive", "these two runs are not shown to be a pair"),
        (0.0, {"hides": "it does"}, "inconclusive", "a NaN may be hidden in the file"),
        (0.005, {"hides": "it does"}, "fail", "the gap to BF16 is outside the margin"),
    ],
)
def test_first_decisive_or_worst_finding_decides(gap, fp8, status, headline):
    v = plain(gap, **fp8)
    assert (v.status, v.headline.partition(" (")[0]) == (status, headline)


@pytest.mark.parametrize(("steps", "lines", "gap"), [(20, 12, True), (19, 8, False)])
def test_short_run_is_inconclusive(steps, lines, gap):
    v = judge([run(noisy(steps))], [run(near(0.0, steps), "fp8")], PairOptions())
    assert (v.status, len(v.lines), gap_of(v) is not None) == ("inconclusive", lines, gap)


def test_gap_before_the_tail_is_not_judged():
    v = plain([0.01] * 320 + [0.0] * 80, PairOptions(margin=0.01))
    assert v.status == "pass" and (found := gap_of(v)) and found.mean == pytest.approx(0.0, abs=1e-4)


def test_losses_that_end_in_nan_have_no_tail():
    v = judge(
        [run(noisy())],
        [run([*near()[:300], *[math.nan] * 100], "fp8", not_finite=list(range(301, 401)))],
        PairOptions(),
    )
    assert (exit_code(v), gap_of(v)) == (1, None) and not {"tail gap", "shape", "equal loss"} & {
        name for name, _ in v.lines
    }


def test_nan_fails_in_real_runs_of_the_trainer():
    v = judge([runs.read(HF / "every-ten")], [runs.read(HF / "nan")], PairOptions())
    assert (exit_code(v), v.headline) == (1, "FP8's loss is not finite at step 60 (15 in all)")
    assert judge([runs.read(HF / "fp32")], [runs.read(HF / "bf16")]).status == "pass"


SHORT = run([round(x, 5) for x in noisy()], "a", decimals=5)
A, B, C, D = run(noisy(), "a"), run(noisy(seed=1), "b"), run(near(), "c"), run(near(seed=1), "d")


@pytest.mark.parametrize(
    ("bf16", "fp8", "repeats", "says"),
    [
        ([A], [C, C], [], "1 BF16 runs and 2 FP8 runs"),
        ([A, A], [C, D], [], "a and a hold the same losses"),
        ([A, B], [C, C], [], "c and c hold the same losses"),
        ([A], [C], [A], "a is named twice"),
        ([A], [C], [run(near(), "e")], "e holds the losses of c: a repeat of BF16 is no FP8 run"),
        ([A, SHORT], [C, D], [], "a and a hold the same losses"),
        ([A], [C], [run(noisy(seed=3), "e")], "e is no repeat of a: correlation"),
        ([A], [C], [run(noisy()[:300], "e")], "e is no repeat of a: one of them ends earlier"),
    ],
)
def test_runs_that_are_no_seeds_or_repeats_are_refused(bf16, fp8, repeats, says):
    with pytest.raises(ValueError, match=f"^{re.escape(says)}"):
        judge(bf16, fp8, PairOptions(), repeats)


def test_own_recorded_pairs_pass_and_planted_gaps_fail(tmp_path):
    """With the BF16 run of another seed they are no pair."""
    found = [r for r in load_records(ROOT / "golden/records/micro-xeon.zip") if isinstance(r, Trajectory)]
    bf16 = {r.seed: run_of(curve_of(r), tmp_path / f"bf16-{r.seed}") for r in found if r.cell.is_control}
    fp8 = [r for r in found if r.cell.recipe in ("te-current", "ao-rowwise")]
    assert len(fp8) >= 4
    for i, r in enumerate(fp8):
        sound, gap = (run_of(curve_of(r).with_gap(g), tmp_path / f"{i}-{g}") for g in (0.0, 0.005))
        other = next(k for k in bf16 if k != r.seed)
        cases = ((r.seed, sound), (r.seed, gap), (other, sound))
        assert [exit_code(judge([bf16[s]], [x])) for s, x in cases] == [0, 1, 2]


@settings(max_examples=20, deadline=None)
@given(gap=st.floats(-0.02, 0.02), scale=st.sampled_from([0.5, 2.0, 8.0]), seed=st.integers(0, 9))
def test_verdict_does_not_depend_on_the_unit_of_the_loss(gap, scale, seed):
    bf16, fp8 = np.asarray(noisy(seed=seed)), np.asarray(near(gap, seed=seed))
    first, second = (
        judge([run((f * bf16).tolist())], [run((f * fp8).tolist(), "fp8")], PairOptions()) for f in (1.0, scale)
    )
    assert (first.status, first.lines[-3:]) == (second.status, second.lines[-3:])
    one, other = gap_of(first), gap_of(second)
    assert one and other and one.mean == pytest.approx(other.mean, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(gap=st.floats(0.0, 0.02), more=st.floats(0.0, 0.01), wider=st.floats(1.0, 4.0))
def test_larger_gap_or_narrower_margin_is_never_better(gap, more, wider):
    order = ["pass", "inconclusive", "fail"]
    ranks = [order.index(plain(g, PairOptions(margin=m)).status) for g, m in
             ((gap, 0.0025 * wider), (gap + more, 0.0025 * wider), (gap + more, 0.0025))]  # fmt: skip
    assert ranks == sorted(ranks)
