"""Choose the execution of a recipe that runs on a machine."""

from __future__ import annotations

from fp8parity.recipes.recipe import Recipe
from fp8parity.recipes.registry import executions, skip_reason
from fp8parity.records.cell import Execution


def first_runnable(recipe: Recipe, capability: tuple[int, int] | None) -> Execution | None:
    """Return the first execution of a recipe that runs on this capability, or None."""
    return next((e for e in executions(recipe) if skip_reason(recipe, e, capability) is None), None)


def runnable(recipe: Recipe, capability: tuple[int, int] | None) -> Execution:
    """Return the first execution of a recipe that runs. Raises ``ValueError`` if none."""
    if (execution := first_runnable(recipe, capability)) is None:
        reasons = "; ".join(f"{e} {skip_reason(recipe, e, capability)}" for e in executions(recipe))
        raise ValueError(f"{recipe.name} does not run here: {reasons}")
    return execution
