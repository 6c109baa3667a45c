"""Faults by place: one linear of a model does something else than the recipe says there, or one expert of several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8parity.checks import experts
from fp8parity.numerics.emulation import EmulatedLinear, Prepared
from fp8parity.numerics.scaling import quantize
from fp8parity.numerics.spec import PLAIN
from fp8parity.recipes import RECIPES
from fp8parity.training import loop
from fp8parity.workload.experts import ExpertLinears, TokenGroups
from torch import Tensor, nn

from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import BY_BLOCK, Measured
from faults.plants import Plant

Change = Callable[[nn.Module], object]
"""Changes a converted model."""
SPEC = RECIPES["te-current"].linear


def converted(change: Change, module: Any = loop) -> Plant:
    """The model that a check has converted is changed."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = module.apply

        def apply(*a: Any, **k: Any) -> Any:
            made = real(*a, **k)
            change(made.model)
            return made

        patch.setattr(module, "apply", apply)

    return plant


def not_quantized(place: str) -> Change:
    """A layer of the right class and spec that hands its operands on as they came."""

    def change(model: nn.Module) -> None:
        linear = model.get_submodule(place)
        assert isinstance(linear, EmulatedLinear)
        linear.operand = lambda name, x: (x, torch.ones(()))  # type: ignore[method-assign]  # of this layer alone, not of its class

    return change


def rounded(x: Tensor) -> Tensor:
    return x + (quantize(x.detach().flatten(0, -2), SPEC.fprop_x).dequantize().to(x.dtype).view(x.shape) - x).detach()


def quantized(place: str) -> Change:
    """A plain linear whose forward pass rounds its weight and its input to E4M3."""

    def change(model: nn.Module) -> None:
        linear = model.get_submodule(place)
        assert type(linear) is nn.Linear

        def forward(input: Tensor) -> Tensor:
            return nn.functional.linear(rounded(input), rounded(linear.weight))

        linear.forward = forward  # type: ignore[method-assign]  # of this layer alone, not of its class

    return change


def neighbors_scale(name: str) -> Plant:
    """The operand ``name`` of an expert is read with the scale of the expert before it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real, last = EmulatedLinear.operand, dict[str, Tensor]()

        def wrong(self: EmulatedLinear, operand: str, x: Tensor) -> Prepared:
            data, scale = real(self, operand, x)
            if operand != name or not x.numel():
                return data, scale
            before = last.get(name, scale)
            last[name] = scale
            return data, before

        patch.setattr(EmulatedLinear, "operand", wrong)

    return plant


class Unwritten(torch.autograd.Function):
    """Adds what was in the memory to the gradient of a weight."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        return dy, torch.full_like(ctx.weight, 1e-3)


def unwritten_gradient(patch: pytest.MonkeyPatch) -> None:
    """The weight gradient of the expert without a token is not written."""
    real = ExpertLinears.forward

    def unwritten(self: ExpertLinears, x: Tensor, groups: TokenGroups) -> Tensor:
        return Unwritten.apply(real(self, x, groups), self.weights[experts.IDLE])

    patch.setattr(ExpertLinears, "forward", unwritten)


def expert_in_bf16(model: nn.Module) -> None:
    linear = model.get_submodule("experts.3")
    assert isinstance(linear, EmulatedLinear)
    linear.spec = PLAIN


def placed(change: Change, place: str, words: str = "") -> Fault:
    finding = Finding(Measured("places", BY_BLOCK, "micro"), place, Blame.RECIPE, words=words)
    return Fault(Kind.RECIPE, converted(change), (finding,))


def of_experts(plant: Plant, place: str) -> Fault:
    finding = Finding(Measured("experts", "te-current", "tiny-moe"), place, Blame.RECIPE)
    return Fault(Kind.RECIPE, plant, (finding,))


FAULTS = {
    "a layer that should be quantized is not": placed(
        not_quantized("layers.0.mlp.up_proj"), "misplaced fprop @ layers.0.mlp.up_proj"
    ),
    "a layer that should be in BF16 is quantized": placed(
        quantized("layers.1.mlp.up_proj"),
        "misplaced wgrad @ layers.1.mlp.up_proj",
        "fprop of layers.1.mlp.up_proj in microbatch 0 of step 0 has",
    ),
    "weights with a neighbor expert's scale": of_experts(neighbors_scale("fprop_w"), "dgrad expert gain @ expert 3"),
    "gradients with a neighbor expert's scale": of_experts(neighbors_scale("dgrad_dy"), "wgrad expert gain @ expert 3"),
    "gradient of an idle expert not written": of_experts(unwritten_gradient, "idle result @ wgrad"),
    "an expert stays in BF16": of_experts(converted(expert_in_bf16, experts), "fprop expert sqnr @ expert 3"),
}
