"""Faults that the first step of a run shows: the gradient norm of each parameter, beside that of BF16 on the same weights and batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from fp8parity.numerics.emulation import EmulatedLinear
from torch import Tensor, nn

from faults import arm
from faults.fault import Blame, Fault, Finding, Kind, Words
from faults.looks import Canary
from faults.plants import Plant
from faults.runs import FirstGradients


def scaled(names: tuple[str, ...], factor: float, outputs: int) -> Plant:
    """The operands ``names`` of linears whose weight has ``outputs`` outputs decode to ``factor`` times what they should."""
    real = EmulatedLinear.operand

    def operand(self: EmulatedLinear, name: str, x: Tensor) -> Any:
        data, outer = real(self, name, x)
        return (data, outer * factor) if name in names and self.out_features == outputs else (data, outer)

    return lambda patch: patch.setattr(EmulatedLinear, "operand", operand)


def _first(recipe: str, plant: Plant, words: Words, source: str = "made up") -> Fault:
    finding = Finding(FirstGradients(recipe, seeds=(0,)), "first step", Blame.RECIPE, words=words)
    return Fault(Kind.RECIPE, plant, (finding,), source)


def with_z_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs).float().flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten()) + 1e-4 * logits.logsumexp(-1).square().mean()


def softmax_in_bf16(module: Any) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        later = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return scores.masked_fill(later, -torch.inf).softmax(-1) @ v

    for block in module.layers:
        block.attention.attend = attend


def once_in_bf16(name: str) -> Callable[[Any], None]:
    """The first use of one linear is not quantized."""

    def change(module: Any) -> None:
        linear, uses = module.get_submodule(name), itertools.count()
        real = linear.forward
        linear.forward = lambda x: real(x) if next(uses) else F.linear(x, linear.weight)

    return change


def _sound_runs(recipe: str, plant: Plant, *others: Finding) -> Fault:
    """The ratios of norms are inside their rules, and the golden's sound runs are far away."""
    look = FirstGradients(recipe)
    words = ("first gradients from sound runs, most in ", "gap to BF16 away from those of sound runs")
    return Fault(Kind.RECIPE, plant, (Finding(look, "first step", Blame.RECIPE, words=words), *others))


def _attention(recipe: str, plant: Plant) -> Fault:
    """The canary sees the attention between linears, too."""
    place = "input sqnr @ layers.0.attention.o_proj"
    return _sound_runs(recipe, plant, Finding(Canary(recipe=recipe), place, Blame.RECIPE, cause="attention"))


OUTSIDE = "is below [0.955, 1.035]"
FAULTS = {
    "weight gradients of the first MLPs lost": _first(
        "te-block", scaled(("wgrad_dy",), 0.0, 192), f"_proj.weight, step 0, seed 0: 0 {OUTSIDE}", "TE 1554, 1616"
    ),
    "gradient scale off by a tenth": _first("te-current", scaled(("dgrad_dy",), 1.1, 192), "is above [0.991, 1.007]"),
    "weight scale off by two": _first(
        "te-current", scaled(("fprop_w",), 0.5, 32), ("attention.q_proj.weight, step 0, seed 0: 0.23", OUTSIDE)
    ),
    "first gradient of the embedding 2% large": _first(
        "te-current",
        arm.converted(lambda model: model.embedding.weight.register_hook(lambda g: g * 1.02)),
        "first gradient of embedding.weight, step 0, seed 0: 1.0",
    ),
    "RoPE angles in BF16": _attention("te-current", arm.converted(arm.angles_in_bf16)),
    "RoPE base of 10,500": _attention("te-block", arm.converted(arm.rope_of(10_500.0))),
    "z-loss of 1e-4": _sound_runs("te-current", arm.stepped(lambda real, *args: real(*args[:4], with_z_loss))),
    "softmax in BF16": _attention("te-current", arm.converted(softmax_in_bf16)),
    **{
        f"one linear in BF16 for one microbatch of {recipe}": _sound_runs(recipe, arm.converted(once_in_bf16(name)))
        for recipe, name in (("te-block", "layers.0.mlp.up_proj"), ("te-delayed", "layers.0.attention.q_proj"))
    },
}
