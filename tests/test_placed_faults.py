"""Planted faults of a recipe by place: the right modules by name and class, and one does something else. The check ``places`` is red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.checks import places
from fp8parity.gate import selection
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.scaling import quantise
from fp8parity.recipes import RECIPES
from fp8parity.recipes.placed import Rule
from sessions import Session, cell
from torch import Tensor, nn

RECIPE = "te-current-ends-bf16"
SPEC = RECIPES["te-current"].linear
Plant = Callable[[nn.Module], None]
Judge = Callable[..., Verdict]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def judged(session: Session, monkeypatch) -> Judge:
    """The verdict of the check on a recipe and a model of three blocks. A plant changes the converted model."""
    nano = session.preset("nano")
    session.presets = {**session.presets, "nano": replace(nano, model=replace(nano.model, layers=3))}
    real = places.apply

    def run(plant: Plant = lambda model: None, recipe: str = RECIPE) -> Verdict:
        def apply(*a: Any, **k: Any) -> Any:
            converted = real(*a, **k)
            plant(converted.model)
            return converted

        monkeypatch.setattr(places, "apply", apply)
        return session.numerics("places", cell(recipe, "emulated", "nano"))

    return run


def named(found: Verdict) -> set[str]:
    """What the verdict names beside the counts."""
    return {name for name, _ in found.lines if name.startswith("misplaced ") and "layers." in name}


@pytest.mark.parametrize("recipe", [r for r in RECIPES if RECIPES[r].linear.quantised])
def test_sound_recipes_do_at_each_place_what_they_say(judged, recipe):
    found = judged(recipe=recipe)
    assert found.status == "pass", found.message()


def test_a_layer_that_should_be_quantised_and_is_not(judged):
    """It has the right class and the right spec, and hands its operands on as they came."""

    def plant(model: nn.Module) -> None:
        model.get_submodule("layers.1.mlp.up_proj").operand = lambda name, x: (x, torch.ones(()))  # type: ignore[assignment]

    found = judged(plant)
    assert found.status == "fail"
    assert named(found) == {f"misplaced {gemm} @ layers.1.mlp.up_proj" for gemm in ("fprop", "dgrad", "wgrad")}, found.message()


def test_a_layer_that_should_be_bf16_and_is_not(judged, monkeypatch):
    """A plain linear of the last block whose forward pass rounds its weight and its input to E4M3."""

    def rounded(x: Tensor) -> Tensor:
        return x + (quantise(x.detach().flatten(0, -2), SPEC.fprop_x).dequantise().to(x.dtype).view(x.shape) - x).detach()

    def plant(model: nn.Module) -> None:
        linear = model.get_submodule("layers.2.mlp.up_proj")
        assert type(linear) is nn.Linear
        monkeypatch.setattr(linear, "forward", lambda x: nn.functional.linear(rounded(x), rounded(linear.weight)))

    found = judged(plant)
    assert found.status == "fail"
    assert named(found) == {f"misplaced {gemm} @ layers.2.mlp.up_proj" for gemm in ("fprop", "dgrad", "wgrad")}, found.message()
    assert "fprop of layers.2.mlp.up_proj has 2" in found.message()


def test_one_gemm_of_a_place_that_is_not_in_bf16(judged, monkeypatch):
    """A rule about wgrad alone, and a module made without it."""
    ruled = replace(RECIPES["te-current"], name=RECIPE, rules=(Rule(blocks=(1,), gemms=("wgrad",)),))
    monkeypatch.setitem(RECIPES, RECIPE, ruled)
    assert judged().status == "pass"

    def plant(model: nn.Module) -> None:
        model.get_submodule("layers.1.attention.o_proj").spec = SPEC  # type: ignore[assignment]

    assert named(judged(plant)) == {"misplaced wgrad @ layers.1.attention.o_proj"}


def test_a_block_is_not_a_model_with_places():
    why = selection._without_its_places("block_cell", RECIPES[RECIPE], None)
    assert why == "one block is timed, and te-current-ends-bf16 is about places of a whole model"
    assert selection._without_its_places("gemm_cell", RECIPES[RECIPE], None) is None
