"""A record that lacks a place of a metric is not green, although other places of the metric are there and only rules judge them."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from fp8parity.checks import RunSpec, checkpoint
from fp8parity.judging import numerics
from fp8parity.judging.policy import Policy
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import Recipe
from fp8parity.recipes.registry import executions, installed
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Measurements
from fp8parity.records.storage import load_records
from fp8parity.workload.presets import presets
from sessions import cell, stored

RECORDS = Path(__file__).parents[1] / "golden" / "records"
OPERANDS = [name for name, _ in RECIPES["te-current"].linear]
CELLS = [(recipe, execution) for recipe in RECIPES.values() for execution in executions(recipe)]
SETS = ("epyc.zip", "h100-gate-sixth.zip", "h200-variants-numerics.zip")
CHECKS = ("codes", "dispatch", "places", "defaults", "modes", "checkpoint")


def named(check: str, recipe: Recipe, execution: str) -> set[tuple[str, str]]:
    """The numbers that the policy names for a whole record."""
    row = stored()[1].complete_row(cell(recipe.name, execution), check)
    return set(row.numbers) if row else set()


@pytest.mark.parametrize(("recipe", "execution"), CELLS, ids=lambda value: str(getattr(value, "name", value)))
def test_the_policy_names_what_the_checks_of_each_recipe_measure(recipe, execution):
    """Who changes which operands a recipe quantizes, or how it keeps its weights, must say so in the policy."""
    if recipe.linear.quantized:
        quantized = [name for name, op in recipe.linear if op.quantized]
        assert named("codes", recipe, execution) == set(product(["differing codes", "differing scales"], quantized))
    seen = execution != Execution.NATIVE or recipe.native is None or installed(recipe.native.package)
    spec = RunSpec(recipe, execution, torch.device("cpu"), presets()["micro"].model, presets()["micro"].schedule)
    if seen and checkpoint.stateless(spec) is None:
        assert {where for _, where in named("checkpoint", recipe, execution)} == set(checkpoint.arms(spec))
    kinds = {
        "defaults": {*OPERANDS},
        "places": {*GEMMS},
        "modes": {"before the capture", "replayed"},
        "dispatch": {"forward", "backward"},
    }
    kinds["modes"] |= set() if execution == Execution.FUSED else {"tiny steps"}
    kinds["dispatch"] |= {"linear"} if execution == Execution.NATIVE else set()
    for check, places in kinds.items():
        assert {where for _, where in named(check, recipe, execution)} == places


@cache
def records(check: str) -> list[Measurements]:
    """A record of a check for each form that its numbers have."""
    found = (
        r for name in SETS for r in load_records(RECORDS / name) if isinstance(r, Measurements) and r.check == check
    )
    forms = {tuple(m.place for m in r.values): r.model_copy(update={"partial": False}) for r in found}
    return list(forms.values())


def status(record: Measurements, policy: Policy | None = None) -> tuple[str, str]:
    goldens, own = stored()
    found = numerics.judge(record, policy or own, goldens.numbers)
    return found.status, found.headline


@pytest.mark.parametrize("check", CHECKS)
def test_a_record_without_any_one_of_its_numbers_is_an_error(check):
    assert len(records(check)) >= (3 if check in ("codes", "checkpoint") else 1)
    for record in records(check):
        assert status(record)[0] == "pass"
        for i, gone in enumerate(record.values):
            short = record.model_copy(update={"values": [*record.values[:i], *record.values[i + 1 :]]})
            found, headline = status(short)
            assert found == "error" and headline.startswith(
                f"the record lacks 1 number that golden/numerics or the policy names: {gone.metric}"
            )


def test_a_record_of_an_older_schema_may_lack_a_place():
    [record] = records("defaults")
    assert status(record.model_copy(update={"values": record.values[1:], "partial": True}))[0] == "pass"
