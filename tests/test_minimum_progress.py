"""A model that hardly learnt is no basis for a pass: its loss cannot show what a recipe does to what was not learnt."""

from __future__ import annotations

import numpy as np
import paired
import pytest
from fp8parity.judging.policy import LossRow
from fp8parity.judging.references.loss import from_runs
from paired import ROW, SEEDS, STEPS


@pytest.fixture
def run(trajectory):
    """Runs whose loss falls by 0.3 nats, from 5.0."""
    make = paired.runner(trajectory)
    start, flat = np.linspace(5.0, 3.5, STEPS), np.linspace(5.0, 4.7, STEPS)

    def shallow(recipe: str = "bf16", seed: int = 0, noise: int = 0, change: float = 0.0, **more: object):
        return make(recipe, seed, noise, flat / start * (1 + change) - 1, **more)

    return shallow


def verdict(run, row=ROW, **entropies):
    golden = paired.golden_of(run)
    runs, controls = (
        [run(recipe, s, noise, **entropies) for s in SEEDS] for recipe, noise in (("te-current", 3), ("bf16", 0))
    )
    return paired.judged(golden, runs, controls, row=row)


WITHOUT_CONTEXT = ROW.model_copy(update={"min_context_learned": None})


@pytest.mark.parametrize(
    ("entropies", "share"),
    [
        ({"floor": 3.0, "unigram": None, "bigram": None}, "14%"),
        ({"unigram": 4.4, "bigram": 3.0}, "14%"),
        ({"floor": 2.0}, "9%"),
        ({"floor": 0.0}, "5%"),
    ],
    ids=["floor", "bigram", "the floor goes before the bigram", "not known"],
)
def test_it_is_inconclusive_and_says_why(run, entropies, share):
    found = verdict(run, WITHOUT_CONTEXT, **entropies)
    drop = f"its loss fell from 5.010 to 4.738 nats, {share} of the possible drop; 25% is required"
    assert (found.status, drop in found.headline) == ("inconclusive", True), found.headline


@pytest.mark.parametrize(
    ("fell", "entropies"),
    [
        (0.0, {"floor": 3.0}),
        (0.1, {"floor": 3.0}),
        (0.25, {"floor": 4.2}),
        (0.25, {"floor": None, "unigram": None, "bigram": None}),
    ],
    ids=["not asked", "a smaller share", "a corpus that allows little", "nothing is known of the corpus"],
)
def test_otherwise_it_passes(run, fell, entropies):
    assert verdict(run, WITHOUT_CONTEXT.model_copy(update={"min_loss_drop": fell}), **entropies).status == "pass"


def test_a_model_that_learnt_but_no_context_is_inconclusive_for_that_reason(trajectory):
    found = verdict(paired.runner(trajectory), ROW, unigram=4.0, bigram=3.0)
    assert (found.status, "31% of the way" in found.headline) == ("inconclusive", True)


@pytest.mark.parametrize(
    ("fell", "learnt", "status"), [(0.0, 0.5, "pass"), (0.001, 0.5, "inconclusive"), (0.0, 0.51, "inconclusive")]
)
def test_a_share_that_is_reached_exactly_is_enough(trajectory, fell, learnt, status):
    """The loss stays at 4.5 nats, half the way from the unigram to the bigram entropy."""

    def flat(recipe: str, seed: int, loss: float):
        values = {"loss": [loss] * 12, "validation": [(11, loss)], "unigram": 5.0, "bigram": 4.0}
        return trajectory(recipe, seed, **values)

    controls = [flat("bf16", s, 4.5) for s in range(3)]
    row = LossRow(
        margin=0.005, seeds=(3,), window=4, min_loss_drop=fell, min_context_learned=learnt, why="a made-up row"
    )
    runs = [flat("te-current", s, 4.5 * (1 + 1e-4 * (s + 1))) for s in range(3)]
    assert paired.judged(from_runs(controls, []), runs, controls, row=row).status == status
