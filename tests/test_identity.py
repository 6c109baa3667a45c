"""Runs under the name of another recipe are found by their first losses and gradients."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from faults.runs import calibration
from fp8parity.judging import identity
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import machines
from fp8parity.records.storage import load_records
from narrowed import some
from reports import RECIPES
from sessions import stored

GOLDENS, POLICY = stored()
GOLDEN = GOLDENS.loss["micro", "topics"]
RUNS = {
    recipe: sorted((r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant), key=lambda r: r.seed)
    for recipe in ("bf16", *RECIPES)
}
PAIRS = [p for p in permutations(RUNS, 2) if "bf16" not in p and not POLICY.are_equal(*p, always=False)]
LOSSES, GRADIENTS = ("loss", "grad_norm"), ("first_gradients",)
ALIKE = {"te-block", "te-mxfp8", "ao-mxfp8", "ao-rowwise", "ao-rowwise-gw-hp"}
"""Recipes with similar first losses: they round blocks or rows as finely, to powers of two."""


def found(name: str, recipe: str, *fields: str) -> list[list[identity.Likeness]]:
    """Compare runs that have these numbers of a recipe under another name."""
    named = [
        own.model_copy(update={f: getattr(other, f) for f in fields})
        for own, other in zip(RUNS[name], RUNS[recipe], strict=True)
    ]
    return identity.likenesses(named, RUNS["bf16"], GOLDEN, POLICY)


@pytest.mark.parametrize(("name", "recipe"), PAIRS, ids=[" as ".join(reversed(p)) for p in PAIRS])
def test_runs_of_another_recipe_are_found(name, recipe):
    both = some(identity.doubtful(found(name, recipe, *LOSSES, *GRADIENTS), name))
    gradients = some(identity.doubtful(found(name, recipe, *GRADIENTS), name))
    assert "the first" in both[1] and "the first gradients" in gradients[1]
    losses = identity.doubtful(found(name, recipe, *LOSSES), name)
    assert ({name, recipe} <= ALIKE) or losses is not None


@pytest.mark.parametrize("recipe", [r for r in RUNS if r != "bf16"])
def test_sound_runs_are_their_own(recipe):
    likenesses = found(recipe, recipe)
    assert all(len(likes) == 3 for likes in likenesses)
    assert identity.of_another(likenesses) is None and identity.doubtful(likenesses, recipe) is None


@pytest.mark.parametrize("change", [{"seed": 50}, {"provenance": None}, {"first_gradients": {}}], ids=str)
def test_what_the_golden_does_not_hold_is_not_compared(change):
    if "provenance" in change:
        change = {"provenance": RUNS["te-current"][0].provenance.model_copy(update={"capability": [10, 0]})}
    runs: list[Trajectory] = [r.model_copy(update=change) for r in RUNS["te-current"]]
    made = identity.likenesses(runs, RUNS["bf16"], GOLDEN, POLICY)
    assert [len(likes) for likes in made] == ([3, 0] if "first_gradients" in change else [0, 0])


def test_equal_runs_of_two_vendors_are_sound_and_those_of_one_are_not():
    """te-current and ao-tensorwise of two Hugging Face models, native on an H200, are equal to the bit."""
    path = Path(__file__).parents[1] / "golden/records/h200-hf.zip"
    records = [r for r in load_records(path) if isinstance(r, Trajectory) and r.cell.model == "hf-qwen3"]
    by = {name: [r for r in records if r.cell.recipe == name] for name in ("te-current", "ao-tensorwise")}
    assert [r.loss for r in by["te-current"]] == [r.loss for r in by["ao-tensorwise"]]
    for kinds, fault in ((by["te-current"], None), (by["ao-tensorwise"], "of seed 0 equal those of ao-tensorwise")):
        runs = [r.model_copy(update={"inventory": k.inventory}) for r, k in zip(by["te-current"], kinds, strict=True)]
        (machine,) = machines([*runs, *by["ao-tensorwise"]])
        text = identity.runs_of_another(runs, machine, POLICY)
        assert (fault in some(text)) if fault else text is None
