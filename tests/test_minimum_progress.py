"""A model that hardly learnt is no basis for a pass: its loss cannot show what a recipe does to what was not learnt."""

from __future__ import annotations

import numpy as np
import paired
import pytest
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
