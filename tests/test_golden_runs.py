"""The runs of a loss golden: what a replica and a spread may hold, and the mean of a run and its replicas."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reports
from fp8parity.judging.references.loss import TAIL_SD_MOST, GoldenSeed, Spread
from fp8parity.judging.stats import REPEATS, Prior

RUN: dict[str, Any] = {"loss": [4.0, 3.0], "grad_norm": [2.0, 1.0], "validation": [(1, 3.5)]}


def seed(*replicas: dict[str, Any]) -> GoldenSeed:
    made = [RUN | {"variant": f"replica{i}"} | changes for i, changes in enumerate(replicas, 1)]
    return GoldenSeed(**RUN, seed=0, initial_weights="w", final_weights="f", replicas=made)  # type: ignore[arg-type]


def spread(**changes: Any) -> Spread:
    """A spread of 20 windows of 8 steps."""
    given: dict[str, Any] = {
        "recipes": ["te-current"],
        "runs": 2,
        "seeds": 2,
        "window": 8,
        "tail_sd": 1e-5,
        "seconds": 0.0,
    }
    quiet = {"loss": [1e-4] * 20, "grad_norm": [1e-3] * 20, "provenance": reports.provenance()}
    return Spread(**given | quiet | changes)


def test_a_spread_may_have_one_window():
    assert spread(loss=[1e-4], grad_norm=[1e-3]).loss == [1e-4]


@pytest.mark.parametrize(
    ("replicas", "loss", "norm", "validation"),
    [
        ([], [4.0, 3.0], [2.0, 1.0], 3.5),
        ([{"loss": [5.0, 4.0], "grad_norm": [4.0, 2.0], "validation": [(1, 4.0)]}], [4.5, 3.5], [3.0, 1.5], 3.75),
        ([{"loss": [7.0, 6.0]}, {"grad_norm": [5.0, 4.0], "validation": [(1, 6.5)]}], [5.0, 4.0], [3.0, 2.0], 4.5),
    ],
    ids=["no replica", "one", "two"],
)
def test_the_mean_is_that_of_the_run_and_all_its_replicas(replicas, loss, norm, validation):
    made = seed(*replicas)
    assert (made.mean_loss, made.mean_norm, made.mean_validation) == (loss, norm, validation)


@pytest.mark.parametrize(
    ("replica", "words"),
    [
        ({"loss": [4.0], "grad_norm": [2.0], "validation": [(0, 3.5)]}, "replica1 has 1 losses, and the run 2"),
        ({"validation": [(0, 3.5)]}, "replica1: a replica was validated at other steps than the run"),
        ({"loss": [4.0]}, "1 losses and 2 gradient norms; each step has one of each"),
    ],
)
def test_a_replica_has_the_steps_of_its_run(replica, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        seed(replica)
    assert f"Value error, {words} [" in str(caught.value)


def test_two_replicas_have_two_names():
    with pytest.raises(ValueError, match=r"Value error, replicas: a appears twice \["):
        seed({"variant": "a"}, {"variant": "a"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipes": ["te-block", "te-block"]}, "recipes: te-block appears twice"),
        ({"recipes": ["te-block", "bf16"]}, "recipes: bf16 is the control; a spread is of recipes beside it"),
        ({"seeds": 3}, "2 runs cannot have 3 seeds"),
        ({"loss": [1e-4] * 19}, "19 windows of losses and 20 of gradient norms"),
    ],
)
def test_a_spread_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        spread(**changes)
    assert f"Value error, {words} [" in str(caught.value)


def test_a_spread_may_have_one_run_of_each_seed():
    assert spread(seeds=2).prior == Prior(1e-5, 1)
    assert spread().records == ""


@pytest.mark.parametrize(("tail", "first"), [(40, 14), (41, 13), (39, 14)])
def test_the_tail_has_its_windows_and_the_one_before(tail, first):
    """A tail of 40 steps is 5 windows of 8. A window that holds a part of the tail counts as a whole."""
    wide = [1e-4] * 20
    wide[first] = 0.1
    spread(loss=wide, tail_sd=0.01).fits(160, tail)
    wide = [0.1] * first + [1e-4] * (20 - first)
    with pytest.raises(
        ValueError, match=r"^tail_sd 0.01 does not follow from its windows: their tail has at most 0.0001$"
    ):
        spread(loss=wide, tail_sd=0.01).fits(160, tail)


@pytest.mark.parametrize(("gap", "most"), [(0.01, 0.015), (1e-6, REPEATS), (0.0, REPEATS)])
def test_the_sd_of_the_tail_may_be_its_limit(gap, most):
    assert TAIL_SD_MOST == 1.5
    spread(loss=[gap] * 20, tail_sd=most).fits(160, 40)
    with pytest.raises(ValueError, match=r"^tail_sd .* does not follow from its windows"):
        spread(loss=[gap] * 20, tail_sd=math.nextafter(most, 1)).fits(160, 40)


@pytest.mark.parametrize("steps", [159, 168])
def test_the_windows_of_a_spread_are_those_of_the_schedule(steps):
    with pytest.raises(ValueError, match=f"^20 windows of 8 steps do not make {steps} steps$"):
        spread().fits(steps, 40)
    spread().fits(167, 40)
