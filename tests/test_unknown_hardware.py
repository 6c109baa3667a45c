"""Records of GPUs and recipes without measured numbers: what is wrong is red, what nobody measured is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Measurements
from sessions import measurements, verdict

RECORDS = measurements("h200")
GPU = "NVIDIA GB200"


def record(check: str, recipe: str = "te-current") -> Measurements:
    native = [r for r in RECORDS if r.check == check and r.cell.recipe == recipe and r.cell.model == "tiny"]
    return next(r for r in native if r.cell.execution == Execution.NATIVE)


def judged(made: Measurements, recipe: str, device: str = GPU, **values: float) -> Verdict:
    """The verdict on a record that is said to be of another recipe and GPU, with values by metric in place of its own."""
    return verdict(
        made.model_copy(
            update={
                "cell": made.cell.model_copy(update={"recipe": recipe}),
                "provenance": made.provenance.model_copy(update={"device": device}),
                "values": [replace(m, value=values.get(m.metric.replace(" ", "_"), m.value)) for m in made.values],
            }
        )
    )


@pytest.mark.parametrize("recipe", ["te-mxfp8", "ao-mxfp8", "te-block", "my-recipe"])
def test_a_short_accumulator_of_a_recipe_that_should_have_none_is_red(recipe):
    """te-current's fprop on Hopper loses up to 3.8%; only the recipes that are known for it may."""
    assert judged(record("accumulation"), recipe).status == "fail"


@pytest.mark.parametrize("recipe", ["te-current", "te-delayed", "ao-tensorwise"])
def test_a_known_short_accumulator_on_another_gpu_is_green_and_said(recipe):
    found = judged(record("accumulation"), recipe)
    assert found.status == "pass"
    [text] = found.unmeasured
    assert text.startswith(
        f"no numbers of {GPU} for accumulation (fprop bias @ K=512, fprop bias @ K=2048, fprop bias @ K=8192 and 1 more)"
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("check", "metric"), [("gradients", "total sqnr"), ("gemm", "fprop sqnr"), ("state", "accumulated sqnr")]
)
def test_what_is_not_finite_is_red_even_if_nobody_measured_it(check, metric, value):
    found = judged(record(check), "my-recipe", **{metric.replace(" ", "_"): value})
    assert found.status == "fail"
    assert any(place.startswith(metric) for place, _ in found.lines)


@pytest.mark.parametrize("check", ["gradients", "gemm", "state", "large"])
def test_a_recipe_that_nobody_measured_is_never_green(check):
    """Some of its numbers have rules for every recipe; the others have nothing to be held to."""
    found = judged(record(check), "my-recipe")
    assert found.status == "no-golden"
    assert found.unmeasured
    assert "no rule and no measured number" in found.headline
    assert any(text.endswith("; not judged") for text in found.unmeasured)


@pytest.mark.parametrize("recipe", sorted(set(RECIPES) - {"bf16"}))
@pytest.mark.parametrize("check", ["gradients", "gemm", "large"])
def test_the_numbers_of_bf16_are_no_quantized_recipes(check, recipe):
    """A silent fall-back on a GPU that nobody measured: rules alone find it."""
    bf16 = judged(record(check, "bf16"), recipe)
    assert bf16.status == "fail", bf16.headline
    gemms = {place.split()[0] for place, _ in bf16.lines} & set(GEMMS)
    assert gemms or check == "gradients"
