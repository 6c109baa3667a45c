"""The project's own rules: hardware and recipes without numbers, and trends of accumulation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Measurement, Measurements
from sessions import cell, measurements, verdict
from trajectories import PROVENANCE

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


LENGTHS = ("K=512", "K=2048", "K=8192", "K=32768")
FLAT = [-0.0018, -0.0246, -0.0352, -0.0379]
"""te-current's fprop on an H200 (golden/numerics/nvidia-h200.csv)."""


def held(biases: list[float], execution: str = "native", metric: str = "fprop bias") -> Verdict:
    values = [Measurement(metric=metric, where=k, value=v) for k, v in zip(LENGTHS, biases, strict=True)]
    of = cell("te-current", execution)
    return verdict(
        Measurements(cell=of, check="accumulation", values=values, provenance=PROVENANCE, session="s", partial=True)
    )


def test_a_falling_bias_is_green():
    assert held(FLAT).status == "pass"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_bias_that_rises_is_named_with_the_one_before(at):
    rising = [*FLAT]
    rising[at] = rising[at - 1] + 0.0003
    found = held(rising)
    assert found.status == "fail"
    [(place, text)] = [line for line in found.lines if "rises by" in line[1]]
    assert place == f"fprop bias trend @ {LENGTHS[at]}"
    ends = f"from {rising[at - 1]:.6g} at {LENGTHS[at - 1]} to {rising[at]:.6g}"
    assert text.startswith(f"rises by 0.0003, at most 0.0002 ({ends}: ")
