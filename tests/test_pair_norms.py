"""Empty gradient norms beside those of the other run, in whole sentences. The rows that tables write are in test_runs_norms.py."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection

import pytest
from fp8parity.judging.pair.aligned import align
from fp8parity.judging.pair.cost import gradient_norms
from fp8parity.judging.pair.finding import Asked, Finding
from fp8parity.judging.pair.noise import holes
from fp8parity.judging.pair.norms import emptied_norms
from fp8parity.judging.pair.shape import jumps
from fp8parity.runs.run import Run
from plain_runs import noisy, run

EMPTY = [300, 301]


def normed(empty: Collection[int] = (), unlike: Collection[int] = (), seed: int = 0, source: str = "bf16") -> Run:
    """A run with empty norms and with ``unlike`` ones, which are NaN or infinite in turn."""
    odd = {at: (math.nan, math.inf)[i % 2] for i, at in enumerate(sorted(unlike))}
    norms = [math.nan if at in empty else odd.get(at, 1.0) for at in range(1, 401)]
    return run(noisy(seed=seed), source, grad_norm=norms, norm_empty=sorted(empty), norm_not_finite=sorted(unlike))


def test_an_empty_norm_is_a_nan_where_the_other_run_has_one():
    where, text = (
        "'s gradient norm is empty at step 300 (2 in all)",
        "has one, and the loss is there: it was not finite",
    )
    pair = align(normed(), normed(EMPTY))
    sure = Finding("holes", f"FP8{where}, where BF16 {text}", "fail", True, f"FP8{where}: it was not finite")
    assert (emptied_norms(pair, "FP8", Asked()), emptied_norms(pair, "BF16", Asked())) == ([sure], [])
    assert holes([pair], Asked()) == [sure]
    pair = align(normed(EMPTY), normed())
    undecided = Finding(
        "holes", f"BF16{where}, where FP8 {text}", "inconclusive", True, f"BF16{where}: it was not finite"
    )
    assert (emptied_norms(pair, "BF16", Asked()), emptied_norms(pair, "FP8", Asked())) == ([undecided], [])
    assert holes([pair], Asked()) == [undecided]


@pytest.mark.parametrize(("until", "count"), [(299, 0), (300, 1), (301, 2), (None, 2)])
def test_points_after_the_last_judged_one_do_not_count(until, count):
    found = emptied_norms(align(normed(), normed(EMPTY)), "FP8", Asked(until=until))
    assert [f"300 ({count} in all)" in f.text for f in found] == [True] * bool(count)


@pytest.mark.parametrize(
    ("bf16", "fp8"),
    [(normed(seed=1), normed(EMPTY)), (normed([7]), normed(EMPTY)), (normed([7]), normed(EMPTY, unlike=[7]))],
    ids=["no pair", "a norm where BF16 has none", "a NaN where BF16 has none"],
)
def test_an_empty_norm_is_undecided_if_it_may_be_logged_elsewhere(bf16, fp8):
    where = "FP8's gradient norm is empty at step 300 (2 in all)"
    text = f"{where}, where BF16 has one, and the loss is there: perhaps it was not finite"
    assert emptied_norms(align(bf16, fp8), "FP8", Asked()) == [
        Finding("holes", text, "inconclusive", False, f"{where}: perhaps it was not finite")
    ]


def test_an_empty_norm_says_nothing_where_the_other_one_is_empty_or_not_finite():
    for bf16 in (normed(EMPTY), normed(unlike=EMPTY), normed([300], [301])):
        assert emptied_norms(align(bf16, normed(EMPTY)), "FP8", Asked()) == []


PART = {
    range(1, 41): "FP8 / BF16: none in the first tenth, 1.000 in the tail, 99% of them below 1.000",
    range(1, 40): "FP8 / BF16: 1.000 in the first tenth, 1.000 in the tail, 99% of them below 1.000",
    range(321, 401): "FP8 / BF16: 1.000 in the first tenth, none in the tail",
    range(1, 400): "FP8 / BF16: none in the first tenth, 1.000 in the tail, 99% of them below 1.000",
    range(1, 401): "FP8 / BF16: none in the first tenth, none in the tail",
}
"""Steps without a norm in one of the runs, and what the line of the ratios says."""


@pytest.mark.parametrize(("empty", "says"), PART.items(), ids=map(str, PART))
def test_a_part_of_the_run_may_have_no_norms(empty, says):
    for pair in (align(normed(), normed(empty)), align(normed(empty), normed())):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert gradient_norms([pair], Asked()) == Finding("gradient norm", says)


@pytest.mark.parametrize(("empty", "says"), [(range(141, 161), "and no"), (range(141, 160), "without a spike of the")])
def test_a_jump_may_lie_where_no_norm_is_logged(empty, says):
    """The window of the jump and the one before it hold the steps 141 to 160."""
    norms = [math.nan if at in empty else 1.0 for at in range(1, 301)]
    pair = align(run([2.0] * 300, grad_norm=norms), run([2.0] * 150 + [2.02] * 150, "fp8", grad_norm=norms))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        [found] = jumps([pair], Asked())
    assert found.text.startswith(f"jumps by +1.000% at step 151, {says} gradient norm")
