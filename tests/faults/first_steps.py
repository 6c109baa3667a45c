"""Faults that the first step of a run shows: the gradient norm of each parameter, beside that of BF16 on the same weights and batch."""

from __future__ import annotations

from typing import Any

from fp8parity.numerics.emulation import EmulatedLinear
from torch import Tensor

from faults import arm
from faults.fault import Blame, Fault, Finding, Kind, Words
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
    finding = Finding(FirstGradients(recipe), "first step", Blame.RECIPE, words=words)
    return Fault(Kind.RECIPE, plant, (finding,), source)


OUTSIDE = "x BF16's, expected 0.9600 to 1.0300"
FAULTS = {
    "weight gradients of the first MLPs lost": _first(
        "te-block", scaled(("wgrad_dy",), 0.0, 512), f"_proj.weight 0.0000{OUTSIDE}", "TE 1554, 1616"
    ),
    "gradient scale off by a tenth": _first(
        "te-current", scaled(("dgrad_dy",), 1.1, 512), "x BF16's, expected 0.9910 to 1.0070"
    ),
    "weight scale off by two": _first(
        "te-current", scaled(("fprop_w",), 0.5, 64), ("attention.q_proj.weight 0.23", OUTSIDE)
    ),
    "first gradient of the embedding 2% large": _first(
        "te-current",
        arm.converted(lambda model: model.embedding.weight.register_hook(lambda g: g * 1.02)),
        "gradient norm of embedding.weight 1.0",
    ),
}
