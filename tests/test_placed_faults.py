"""Planted faults of a recipe by place: the right modules by name and class, and one does something else. The check ``places`` is red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from faults.places import SPEC, Change, converted, quantized
from fp8parity.checks.places import matrices, sqnrs
from fp8parity.checks.protocol import watching
from fp8parity.judging.verdict import Verdict
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import Rule
from sessions import Session, cell
from torch import nn

RECIPE = "te-current-ends-bf16"
Judge = Callable[..., Verdict]
pytestmark = pytest.mark.usefixtures("eager")


@pytest.fixture
def judged(session: Session, monkeypatch) -> Judge:
    """The verdict of the check on a recipe and a model of three blocks. A plant changes the converted model."""
    nano = session.preset("nano")
    session.presets = {**session.presets, "nano": replace(nano, model=replace(nano.model, layers=3))}

    def run(plant: Change = lambda model: None, recipe: str = RECIPE) -> Verdict:
        with monkeypatch.context() as patch:
            converted(plant)(patch)
            return session.numerics("places", cell(recipe, "emulated", "nano"))

    return run


def named(found: Verdict) -> set[str]:
    """What the verdict names beside the counts."""
    return {name for name, _ in found.lines if name.startswith("misplaced ") and "layers." in name}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [r for r in RECIPES if RECIPES[r].linear.quantized])
def test_sound_recipes_pass(judged, recipe):
    found = judged(recipe=recipe)
    assert found.status == "pass", found.message()


TIED = "wgrad of lm_head is not examined: its weight is tied"


@pytest.mark.parametrize(
    ("plant", "wrong"),
    [(lambda model: None, set()), (quantized("lm_head"), {"fprop", "dgrad"})],
    ids=["sound", "head in FP8"],
)
def test_wgrad_of_a_tied_head_is_left_out(session, judged, plant, wrong):
    """Its gradient holds that of the embedding, too. What the head itself multiplies is looked at."""
    nano = session.presets["nano"]
    session.presets["nano"] = replace(nano, model=replace(nano.model, tied=True))
    found = judged(plant)
    assert {name for name, _ in found.lines if "lm_head" in name} == {
        f"misplaced {gemm} @ lm_head" for gemm in wrong
    }, found.message()
    assert TIED in [text for name, text in found.lines if name == "note"]


def test_gemm_wrongly_quantized_is_named(judged, monkeypatch):
    """A rule about wgrad alone, and a module made without it."""
    ruled = replace(RECIPES["te-current"], name=RECIPE, rules=(Rule(blocks=(1,), gemms=("wgrad",)),))
    monkeypatch.setitem(RECIPES, RECIPE, ruled)
    assert judged().status == "pass"

    def plant(model: nn.Module) -> None:
        model.get_submodule("layers.1.attention.o_proj").spec = SPEC  # type: ignore[assignment]

    assert named(judged(plant)) == {"misplaced wgrad @ layers.1.attention.o_proj"}


class WithEmptyBias(nn.Linear):
    """A linear without a bias as Transformer Engine makes it: the bias is an empty tensor."""

    def __init__(self) -> None:
        super().__init__(64, 48, bias=False, dtype=torch.bfloat16)
        self.bias = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight)


@pytest.mark.parametrize(
    "make", [WithEmptyBias, lambda: nn.Linear(64, 48, dtype=torch.bfloat16)], ids=["empty", "bias"]
)
def test_bias_is_part_of_the_output(make):
    torch.manual_seed(0)
    linear = make()
    seen: dict[str, torch.Tensor] = {}
    with watching({"linear": linear}, lambda _, found: seen.update(matrices(found))):
        linear(torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    found = sqnrs(linear, seen, linear.weight.grad)
    assert set(found) == {"fprop", "dgrad", "wgrad"}
    assert all(db > 50 for db in found.values()), found
