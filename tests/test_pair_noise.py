"""What a pair of files can show: the grain of their digits, their holes, and how far equal runs lie apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from fp8parity.judging.pair.aligned import Aligned, align
from fp8parity.judging.pair.finding import PUBLISHED, Asked, Finding
from fp8parity.judging.pair.noise import grain, holes, interval, run_to_run, tail_of
from fp8parity.judging.stats import batch_error
from fp8parity.judging.verdict import Status
from fp8parity.runs.run import Run
from plain_runs import both, noisy, run
from scipy import stats

HIDDEN = "a NaN may be hidden in the file"


@pytest.mark.parametrize(
    ("points", "share", "expected"),
    [
        (400, 0.2, 80),
        (102, 0.2, 20),
        (103, 0.2, 21),
        (60, 0.2, 20),
        (40, 0.2, 20),
        (38, 0.2, 19),
        (39, 0.2, 19),
        (30, 0.5, 15),
    ],
)
def test_the_tail_is_a_share_of_the_run_and_twenty_points_if_half_of_it_has_so_many(points, share, expected):
    assert tail_of(both(noisy(points)), Asked(tail=share)) == expected


def test_losses_in_full_have_no_grain():
    assert grain([both(noisy())], Asked()) == Finding("grain", "losses written in full", "pass")


def test_the_rounding_of_a_flat_loss_does_not_average_out():
    """Two decimals of a loss of 2 show 0.5%: this is enough for a margin of 1%, and for no narrower one."""
    pair, text = both([2.0] * 400, decimals=2), "2 decimals; the smallest gap that the file can show is 0.5000%"
    assert grain([pair], Asked(margin=0.01)) == Finding("grain", text, "pass")
    coarse = Finding(
        "grain", f"{text}, too coarse for a margin of 0.99%", "inconclusive", False, "the losses have too few digits"
    )
    assert grain([pair], Asked(margin=0.0099)) == coarse


def test_the_rounding_of_a_loss_that_varies_averages_out():
    """Rounding to whole numbers, and a tail of 81 points, that lie 1 or 2 apart: only what varies by more than the rounding averages it."""
    near, far = both([2.0, 3.0] * 202 + [2.0], decimals=0), both([2.0, 4.0] * 202 + [2.0], decimals=0)
    assert tail_of(near, Asked()) == 81
    assert (
        grain([near], Asked(margin=0.9)).text
        == f"0 decimals; the smallest gap that the file can show is {81 / 202:.4%}"
    )
    averaged = 2 / math.sqrt(6 * 81) * 81 / 242
    assert (
        grain([far], Asked(margin=0.9)).text == f"0 decimals; the smallest gap that the file can show is {averaged:.4%}"
    )
    fine = grain([both([2.0, 4.0] * 202 + [2.0], decimals=1)], Asked(margin=0.9)).text
    assert fine == f"1 decimals; the smallest gap that the file can show is {averaged / 10:.4%}"


def test_the_grain_is_that_of_the_coarsest_file_in_its_tail():
    """The loss before the tail counts for nothing."""
    high = [90.0] * 320 + [2.0] * 80
    fine, fp8, bf16 = (
        both(high, decimals=4),
        align(run(high), run(high, "fp8", decimals=3)),
        align(run(high, decimals=3), run(high, "fp8")),
    )
    text = "3 decimals, 4 decimals, losses written in full; the smallest gap that the file can show is 0.0500%"
    for pairs in ([fine, fp8], [fp8, fine], [fine, bf16], [bf16, fine]):
        assert grain(pairs, Asked()) == Finding("grain", text, "pass")


@pytest.mark.parametrize(("points", "few"), [(40, ""), (39, "; only 19 points in the tail, 20 are needed")])
def test_a_tail_needs_twenty_points(points, few):
    found = grain([both(noisy()), both(noisy(points))], Asked())
    if few:
        assert found == Finding(
            "grain", f"losses written in full{few}", "inconclusive", True, "the tail has too few points"
        )
    else:
        assert found == Finding("grain", "losses written in full", "pass")


def test_too_few_points_come_before_too_few_digits():
    text = "1 decimals; the smallest gap that the file can show is 5.0000%; only 10 points in the tail, 20 are needed"
    assert grain([both([2.0] * 20, decimals=1)], Asked()).text == text


def test_whole_files_have_no_holes():
    for averaging in ("of one step", "unknown"):
        found = holes([both(noisy(), averaging=averaging)], Asked())
        assert found == [Finding("holes", "none: every point is there and finite", "pass")]


def test_every_hole_is_told_with_its_run():
    cut = {"points": [*range(1, 10), *range(13, 44)], "replaced": 2, "skipped": 4, "averaging": "moving average"}
    pair = align(run(noisy(40), averaging="mean since the last log"), run(noisy(40), "fp8", **cut), until=40)
    assert holes([pair], Asked()) == [
        Finding("holes", "FP8: 3 missing points"),
        Finding("holes", "FP8: 2 points logged again after a restart"),
        Finding("holes", "FP8: 4 skipped steps"),
        Finding("holes", "a logged loss is a mean since the last log"),
        Finding("holes", "a logged loss is a moving average"),
    ]
    assert holes([both(noisy(), replaced=1)], Asked()) == [
        Finding("holes", f"{name}: 1 points logged again after a restart") for name in ("FP8", "BF16")
    ]


def test_a_nan_is_red_for_fp8_and_undecided_for_bf16():
    pair = align(run(noisy(), not_finite=[7]), run(noisy(), "fp8", not_finite=[5, 9], axis="steps"))
    first, second = "FP8's loss is not finite at step 5 (2 in all)", "BF16's loss is not finite at step 7 (1 in all)"
    fp8, bf16 = Finding("holes", first, "fail", True, first), Finding("holes", second, "inconclusive", True, second)
    assert holes([pair], Asked()) == [fp8, bf16]
    early = "FP8's loss is not finite at step 5 (1 in all)"
    assert holes([pair], Asked(until=5)) == [Finding("holes", early, "fail", True, early)]
    assert holes([pair], Asked(until=7))[1] == bf16
    assert holes([pair], Asked(until=4)) == [Finding("holes", "none: every point is there and finite", "pass")]


def test_a_norm_that_overflows_in_both_runs_says_nothing_about_fp8():
    pair = align(run(noisy(), norm_not_finite=[3, 8]), run(noisy(), "fp8", norm_not_finite=[3, 6]))
    first, second = (
        "FP8's gradient norm is not finite at step 6 (1 in all)",
        "BF16's gradient norm is not finite at step 3 (2 in all)",
    )
    fp8, bf16 = Finding("holes", first, "fail", True, first), Finding("holes", second, "inconclusive", True, second)
    assert holes([pair], Asked()) == [fp8, bf16]


def test_a_filter_may_hide_a_nan_where_none_was_seen():
    hiding, text = (
        run(noisy(), "fp8", hides="it does"),
        "a NaN may be hidden: it does; if that filter was off, say --unfiltered",
    )
    hidden = [Finding("holes", f"{name}: {text}", "inconclusive", False, HIDDEN) for name in ("FP8", "BF16")]
    assert holes([align(run(noisy()), hiding)], Asked()) == hidden[:1]
    assert holes([align(hiding, run(noisy()))], Asked()) == hidden[1:]
    assert holes([align(hiding, hiding)], Asked(unfiltered=True)) == [
        Finding("holes", "none: every point is there and finite", "pass")
    ]
    seen = run(noisy(), "fp8", hides="it does", not_finite=[5])
    assert [f.status for f in holes([align(run(noisy()), seen)], Asked())] == ["fail"]


def test_an_empty_loss_beside_other_metrics_is_a_nan_where_the_other_run_has_a_loss():
    """Not at step 3, which the other run has no loss for, and not after --until."""
    whole, gaps = run(noisy(), "b"), emptied([3, *range(300, 310)], learning_rate=[1.0] * 390)
    some = run(noisy(), "b", loss=[math.nan if at == 3 else x for at, x in enumerate(noisy(), 1)], not_finite=[])
    cases: list[tuple[Aligned, str, str, Status]]
    cases = [(align(some, gaps), "FP8", "BF16", "fail"), (align(gaps, some), "BF16", "FP8", "inconclusive")]
    for pair, name, other, status in cases:
        where = f"{name}'s loss is empty at step 300 (10 in all)"
        text = f"{where}, where {other} has a loss, and the learning rate or gradient norm is there: it was not finite"
        assert holes([pair], Asked())[0] == Finding("holes", text, status, True, f"{where}: it was not finite")
        assert "300 (1 in all)" in holes([pair], Asked(until=300))[0].text
        assert not [f for f in holes([pair], Asked(until=299)) if f.status]
    same = align(whole, whole.model_copy(update={"empty": [500]}))
    assert holes([same], Asked()) == [Finding("holes", "none: every point is there and finite", "pass")]


def emptied(empty: list[int], **metrics: list[float]) -> Run:
    """An FP8 run without a loss at steps 300 to 309."""
    return without(noisy(), range(300, 310)).model_copy(update={"empty": empty, **metrics})


@pytest.mark.parametrize("metric", ["learning_rate", "grad_norm"])
@pytest.mark.parametrize(
    ("empty", "seed", "beside", "sure"),
    [([500], 0, True, False), ([], 1, True, False), ([], 0, False, False), ([], 0, True, True)],
    ids=["BF16 has such rows", "no pair", "never beside a loss", "sure"],
)
def test_an_empty_loss_is_undecided_if_it_may_be_logged_elsewhere(metric, empty, seed, beside, sure):
    where = "FP8's loss is empty at step 300 (10 in all)"
    text = f"{where}, where BF16 has a loss, and the learning rate or gradient norm is there: perhaps it was not finite"
    gaps = emptied(list(range(300, 310)), **({metric: [1.0] * 390} if beside else {}))
    found = holes([align(run(noisy(seed=seed), empty=empty), gaps)], Asked())[0]
    if sure:
        assert (found.status, found.decisive) == ("fail", True)
    else:
        assert found == Finding("holes", text, "inconclusive", False, f"{where}: perhaps it was not finite")


def test_equal_runs_lie_apart_by_what_is_published_or_said_or_repeated():
    """Repeats that lie significantly further apart than the assumption replace it; others are pooled with it."""
    assert run_to_run(Asked()) == PUBLISHED
    for spread, repeats, sd, df, source in (
        (0.001, (), 0.001, 24, "the value of --spread"),
        (None, (0.0006,), 0.0006, 25, f"1 repeat of BF16, pooled with {PUBLISHED.source}"),
        (
            0.001,
            (0.0, 0.002),
            math.sqrt((4e-6 + 24e-6) / 26),
            26,
            "2 repeats of BF16, pooled with the value of --spread",
        ),
        (None, (0.003,), 0.003, 1, "1 repeat of BF16"),
        (None, (0.003, -0.004), math.sqrt(12.5e-6), 2, "2 repeats of BF16"),
    ):
        found = run_to_run(Asked(spread=spread, repeats=repeats))
        assert (found.df, found.source) == (df, source)
        assert found.sd == pytest.approx(sd)


def test_the_interval_of_one_pair_holds_the_noise_and_the_spread():
    gaps = np.random.default_rng(3).normal(0.001, 0.01, 400)
    error, df = batch_error(gaps)
    variance = error**2 + 0.0006**2
    half = stats.t.ppf(0.9, variance**2 / (error**4 / df + 0.0006**4 / 24)) * math.sqrt(variance)
    found = interval([gaps], Asked(alpha=0.1))
    mean = float(gaps.mean())
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half), rel=1e-9)
    assert (found.n, found.level) == (1, 0.8)


@pytest.mark.parametrize("count", [2, 3])
def test_the_interval_of_several_pairs_pools_their_own_spread(count):
    """The pooled variance has the degrees of freedom of the pairs and, rounded, those of the noise and the assumption."""
    curves = [np.random.default_rng(s).normal(0.001 + 1e-4 * s, 0.01, 400) for s in range(count)]
    errors = [batch_error(c) for c in curves]
    own, df = float(np.mean([e**2 for e, _ in errors])), sum(d for _, d in errors)
    variance = own + 0.0006**2
    freedom = round(variance**2 / (own**2 / df + 0.0006**4 / 24))
    means = [c.mean() for c in curves]
    pooled = ((count - 1) * np.var(means, ddof=1) + freedom * variance) / (count - 1 + freedom)
    half = stats.t.ppf(0.95, count - 1 + freedom) * math.sqrt(pooled / count)
    found = interval(curves, Asked())
    assert (found.low, found.high) == pytest.approx((np.mean(means) - half, np.mean(means) + half), rel=1e-9)
    assert (found.n, found.level) == (count, 0.9)


def without(pair_of: list[float], lost: range) -> Run:
    """A run that did not log these steps."""
    kept = [at for at in range(1, len(pair_of) + 1) if at not in lost]
    return run([pair_of[at - 1] for at in kept], "fp8", points=kept)


@pytest.mark.parametrize(
    ("lost", "found"),
    [
        (range(342, 361), None),
        (range(341, 361), "20 of 96 points of the tail are missing in one of the files, from step 305 on"),
        (range(321, 400), "79 of 143 points of the tail are missing in one of the files, from step 258 on"),
        (range(100, 200), None),
    ],
    ids=["a fifth", "more than a fifth", "all but the last", "before it"],
)
def test_a_tail_of_which_most_is_missing_decides_nothing(lost, found):
    """Counted in points, the tail of a run with holes reaches back to steps before the last fifth."""
    losses = noisy(400)
    for pair in (align(run(losses), without(losses, lost)), align(without(losses, lost), run(losses, "fp8"))):
        decisive = [f for f in holes([pair], Asked()) if f.decisive]
        wanted = Finding("holes", found, "inconclusive", True, "the tail has too many holes") if found else None
        assert decisive == ([wanted] if wanted else [])


def test_points_that_were_never_logged_are_no_holes():
    """Every tenth step is logged."""
    every = list(range(10, 4001, 10))
    pair = both(noisy(400), points=every)
    assert not [f for f in holes([pair], Asked()) if f.decisive]
    some = [at for at in every if not 3500 < at < 4000]
    losses = dict(zip(every, noisy(400), strict=True))
    short = align(run(list(losses.values()), points=every), run([losses[at] for at in some], "fp8", points=some))
    [found] = [f for f in holes([short], Asked()) if f.decisive]
    assert found.text == "49 of 119 points of the tail are missing in one of the files, from step 2820 on"
