"""Two runs on one axis: which points both have, what is refused, and what shows that they are a pair."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from fp8parity.judging.pair.aligned import align, correlation, emptied, identical, paired
from fp8parity.judging.pair.finding import Finding
from plain_runs import both, noisy, run

UNLOGGED = "learning rates not logged; tokens or samples a step not logged"
NEGATIVE = "a loss is not positive, so a relative gap has no meaning; is it a log-likelihood or another metric?"
NO_PAIR = "these two runs are not shown to be a pair"


def test_the_points_are_those_that_both_have_and_whose_losses_are_finite():
    first, second = [2.0, 3.0, math.nan, 4.0, 5.0, 8.0], [4.0, 3.0, 3.0, math.inf, 10.0]
    pair = align(run(first), run(second, "fp8"))
    assert (pair.at.tolist(), pair.reference.tolist(), pair.candidate.tolist()) == ([1, 2, 5], [2, 3, 5], [4, 3, 10])
    assert pair.gap.tolist() == [1, 0, 1]
    assert [pair.place(i) for i in range(3)] == ["step 1", "step 2", "step 5"]
    turned = align(run(second), run(first, "fp8"))
    assert (turned.at.tolist(), turned.reference.tolist(), turned.candidate.tolist()) == (
        [1, 2, 5],
        [4, 3, 10],
        [2, 3, 5],
    )


def test_a_loss_may_be_small():
    assert align(run([0.5, 1e-9]), run([0.25, 1e-9], "fp8")).gap.tolist() == [-0.5, 0.0]


def test_until_is_the_last_point_and_allows_runs_of_other_lengths():
    pair = align(run(noisy(40)), run(noisy(30), "fp8"), until=20)
    assert pair.at.tolist() == list(range(1, 21))


def test_the_values_of_a_metric_are_those_of_the_common_points():
    """None if one of the runs has none of it. A value that is not finite is NaN."""
    rates: dict[str, Any] = {"learning_rate": [1.0, math.inf, 3.0]}
    pair = align(run([2.0, 3.0, 4.0], **rates), run([2.0, 3.0, math.nan], "fp8", learning_rate=[4.0, 5.0, 6.0]))
    columns = pair.column("learning_rate")
    assert columns is not None
    np.testing.assert_array_equal(columns, [[1.0, np.nan], [4.0, 5.0]])
    assert pair.column("seconds") is None
    assert align(run([2.0] * 3, **rates), run([2.0] * 3, "fp8")).column("learning_rate") is None


@pytest.mark.parametrize(
    ("bf16", "fp8", "says"),
    [
        ({}, {"axis": "samples"}, "the first counts steps, the second samples; export both with the same axis"),
        (
            {}, {"points": list(range(10, 410, 10))},
            "the first is logged every 1 steps, the second every 10 steps; log both alike",
        ),
        (
            {}, {"points": list(range(1, 39)), "loss": [2.0] * 38},
            "the first ends at step 40, the second at 38; --until 38 judges the part that both have (the learning rates must agree there)",
        ),
        (
            {"points": list(range(1, 39)), "loss": [2.0] * 38}, {},
            "the first ends at step 38, the second at 40; --until 38 judges the part that both have (the learning rates must agree there)",
        ),
        ({"loss": [math.nan] * 40}, {}, "they share no point with a finite loss"),
        ({}, {"loss": [math.nan] * 40}, "they share no point with a finite loss"),
        ({"loss": [2.0] * 39 + [0.0]}, {}, NEGATIVE),
        ({}, {"loss": [2.0] * 39 + [-1.0]}, NEGATIVE),
    ],
)  # fmt: skip
def test_runs_that_share_no_axis_are_refused(bf16, fp8, says):
    with pytest.raises(ValueError, match=f"^{re.escape(f'bf16 and fp8: {says}')}$"):
        align(run([2.0] * 40, **bf16), run([2.0] * 40, "fp8", **fp8))


def test_ends_may_lie_one_interval_apart():
    assert align(run([2.0] * 40), run([2.0] * 39, "fp8")).at[-1] == 39


@pytest.mark.parametrize(
    ("bf16", "fp8", "text"),
    [
        ({}, {}, UNLOGGED),
        (
            {"learning_rate": [1.0] * 100, "batch": [8.0] * 100, "batch_unit": "tokens"},
            {"learning_rate": [1.0] * 100, "batch": [8.0] * 100, "batch_unit": "tokens"},
            "learning rates equal; tokens or samples a step equal",
        ),
        (
            {"learning_rate": [1000.0] * 100, "batch": [999.0] * 100},
            {"learning_rate": [999.0] * 100, "batch": [1000.0] * 100},
            "learning rates equal; tokens or samples a step equal",
        ),
        (
            {"batch": [8.0] * 100, "batch_unit": "tokens"}, {"batch": [8.0] * 100, "batch_unit": "samples"},
            "learning rates not logged; tokens or samples a step not comparable (tokens and samples)",
        ),
        (
            {"learning_rate": [1.0] * 100, "batch_unit": "tokens"}, {"learning_rate": [1.0] * 100, "batch_unit": "samples"},
            "learning rates equal; tokens or samples a step not logged",
        ),
    ],
)  # fmt: skip
def test_a_pair_says_what_is_equal_and_what_nobody_logged(bf16, fp8, text):
    pair = align(run(noisy(100), **bf16), run(noisy(100), "fp8", **fp8))
    assert paired(pair) == Finding("pair", f"{text}; correlation of the detrended losses 1.000", "pass")


def test_the_first_point_of_another_schedule_or_batch_is_named():
    """A thousandth is the printed digits."""
    rates, batch = [1000.0] * 98 + [998.5] * 2, [1000.0] * 97 + [1001.5] * 3
    equal: dict[str, Any] = {"learning_rate": [1000.0] * 100, "batch": [1000.0] * 100}
    pair = align(run(noisy(100), **equal), run(noisy(100), "fp8", learning_rate=rates, batch=batch))
    text = "learning rates differ from step 99 on (1000 and 998.5); tokens or samples a step differ from step 98 on (1000 and 1002)"
    assert paired(pair) == Finding(
        "pair", f"{text}; correlation of the detrended losses 1.000", "inconclusive", True, NO_PAIR
    )


@pytest.mark.parametrize(
    ("odd", "even", "says"),
    [
        (math.nan, 2.0, "not logged at the same points"),
        (1.0, 2.0, "equal at the 50 of 100 points at which both runs logged them"),
    ],
)
def test_values_at_other_points_are_not_called_equal(odd, even, says):
    """BF16 logs odd steps. FP8 logs even ones, with another rate, or all."""
    pair = align(
        run(noisy(100), learning_rate=[1.0, math.nan] * 50), run(noisy(100), "fp8", learning_rate=[odd, even] * 50)
    )
    text = f"learning rates {says}; tokens or samples a step not logged; correlation of the detrended losses 1.000"
    assert paired(pair) == Finding("pair", text, "pass")


def test_an_empty_loss_at_the_end_does_not_make_a_run_shorter():
    """Where the other run has a loss, too. Otherwise it ended there."""
    whole, short = run(noisy(40)), run(noisy(20), "fp8")
    for empty in ([40], [39, 45]):
        assert align(whole, short.model_copy(update={"empty": empty})).at[-1] == 20
        assert align(short.model_copy(update={"empty": empty}), whole).at[-1] == 20
    with pytest.raises(ValueError, match="the second at 20"):
        align(whole, short.model_copy(update={"empty": [45]}))
    lost = whole.model_copy(update={"loss": [*noisy(39), math.nan]})
    assert (emptied(short.model_copy(update={"empty": [38, 40, 45]}), lost), emptied(short, lost)) == ([38], [])


def test_twenty_changes_are_enough_to_see_a_pair():
    assert paired(both(noisy(44))).status == "pass"
    few = "only 19 changes of the loss are logged in the second half, 20 are needed to see a pair"
    assert paired(both(noisy(42))) == Finding("pair", f"{few}; {UNLOGGED}", "inconclusive", True, NO_PAIR)


@pytest.mark.parametrize(
    ("share", "text", "status"),
    [
        (0.5, "{unlogged}; {said} 0.758", "pass"),
        (0.6, "{said} 0.625, between 0.4 and 0.7: nobody can say whether the batches are the same; {unlogged}", None),
        (0.8, "{said} 0.329, below 0.4: other batches; {unlogged}", None),
    ],
)  # fmt: skip
def test_the_correlation_shows_whether_the_batches_are_the_same(share, text, status):
    """``share`` of what FP8's losses have from batch to batch comes from other batches."""
    mixed = (1 - share) * np.asarray(noisy()) + share * np.asarray(noisy(seed=1))
    found, text = (
        paired(both(noisy(), mixed.tolist())),
        text.format(said="correlation of the detrended losses", unlogged=UNLOGGED),
    )
    assert found == (Finding("pair", text, "pass") if status else Finding("pair", text, "inconclusive", True, NO_PAIR))


def test_the_correlation_is_that_of_second_differences_in_the_second_half():
    """The first half does not count, and a flat loss correlates with nothing."""
    tail = [2.0, 3.0, 2.5, 4.0]
    found, count = correlation(both([2.0, 2.0, 2.0, *tail], [5.0, 3.0, 9.0, *tail]))
    assert found == pytest.approx(1.0) and count == 2
    assert correlation(both(noisy(6))) == (0.0, 1)
    flat = [2.0] * 9
    for first, second in ((flat, noisy(9)), (noisy(9), flat), (flat, flat)):
        assert correlation(both(first, second)) == (0.0, 3)


@pytest.mark.parametrize(
    ("bf16", "fp8", "hidden"),
    [(None, None, False), (4, 4, False), (None, 4, False), (3, None, True), (None, 3, True), (3, 3, True)],
)
def test_equal_losses_are_red_unless_the_digits_may_hide_a_difference(bf16, fp8, hidden):
    text = "the losses equal BF16's to the bit: nothing was quantized, or one run was named twice"
    pair = align(run(noisy(), decimals=bf16), run(noisy(), "fp8", decimals=fp8))
    undecided = Finding(
        "pair", f"{text}; or the digits hide the difference", "inconclusive", True, "all logged losses are equal"
    )
    assert identical(pair) == (undecided if hidden else Finding("pair", text, "fail", True, text))
    assert identical(both(noisy(), [*noisy()[:-1], 2.0])) is None
