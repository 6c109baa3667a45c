"""Faults of one linear or of one microbatch: another operand, scale or geometry there alone, or a result that is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fp8parity.numerics import emulation
from fp8parity.numerics.emulation import EmulatedLinear, Prepared
from fp8parity.numerics.formats import FORMATS
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.numerics.spec import Operand
from torch import Tensor, nn

from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Numerics
from faults.places import Change, converted

UP, DOWN, Q, K = (f"layers.1.{n}_proj" for n in ("mlp.up", "mlp.down", "attention.q", "attention.k"))
FIRST, LAST = 0, 2
"""The first and the last of the three microbatches of a step."""


def at(place: str, change: Callable[[EmulatedLinear], object]) -> Change:
    """Change one linear."""

    def changed(model: nn.Module) -> None:
        linear = model.get_submodule(place)
        assert isinstance(linear, EmulatedLinear)
        change(linear)

    return changed


def other(place: str, *names: str, **fields: Any) -> Change:
    """Operands of one linear differ in some fields."""

    def change(linear: EmulatedLinear) -> None:
        linear.spec = replace(linear.spec, **{n: replace(getattr(linear.spec, n), **fields) for n in names})

    return at(place, change)


def operands(
    place: str, *names: str, to: Callable[[Tensor, Operand], Tensor | Prepared], microbatch: int | None = None
) -> Change:
    """Operands of one linear are made in another way, in each microbatch or in one."""

    def change(linear: EmulatedLinear) -> None:
        real, forward, passes = linear.operand, linear.forward, [-1]

        def count(x: Tensor) -> Tensor:
            passes[0] += 1
            return forward(x)

        def operand(name: str, x: Tensor) -> Prepared:
            if name not in names or (microbatch is not None and passes[0] % 3 != microbatch):
                return real(name, x)
            made = to(x.detach(), getattr(linear.spec, name))
            return made if isinstance(made, tuple) else (made, torch.ones(()))

        linear.operand, linear.forward = operand, count  # type: ignore[method-assign]  # of this layer alone

    return at(place, change)


def plain(x: Tensor, _: Operand) -> Tensor:
    return x


def made(**fields: Any) -> Callable[[Tensor, Operand], Prepared]:
    """An operand by another spec."""
    return lambda x, op: emulation.prepare(x, replace(op, history=0, **fields))[:2]


def times(factor: float) -> Callable[[Tensor, Operand], Prepared]:
    """An operand whose scale is a factor of its own."""

    def make(x: Tensor, op: Operand) -> Prepared:
        scale = SCALE_RULES[op.scale](x.abs().amax().float(), FORMATS[op.format]) * factor
        return emulation.prepare(x, op, scale)[:2]

    return make


def across(x: Tensor, op: Operand) -> Prepared:
    """Blocks along the other axis."""
    data, outer, _ = emulation.prepare(x.T.contiguous(), op)
    return data.T, outer


def results(place: str, change: Callable[[Tensor], Tensor]) -> Change:
    """The output of one linear is changed."""
    return lambda model: model.get_submodule(place).register_forward_hook(lambda _, args, y: change(y))


def inputs(place: str, change: Callable[[Tensor], Tensor]) -> Change:
    """The input of one linear is changed."""
    return lambda model: model.get_submodule(place).register_forward_pre_hook(lambda _, args: (change(args[0]),))


def first_gradient_lost(place: str) -> Change:
    """The weight's gradient of the first microbatch is zero."""

    def change(model: nn.Module) -> None:
        calls = [-1]

        def lose(gradient: Tensor) -> Tensor:
            calls[0] += 1
            return gradient * (calls[0] % 3 != FIRST)

        model.get_parameter(f"{place}.weight").register_hook(lose)

    return change


def shared_scale(model: nn.Module) -> None:
    """The weights of q and k have the scale of the larger one."""
    weights = [model.get_parameter(f"{name}.weight") for name in (Q, K)]

    def to(x: Tensor, op: Operand) -> Prepared:
        amax = torch.stack([w.detach().abs().amax() for w in weights]).amax().float()
        return emulation.prepare(x, op, SCALE_RULES[op.scale](amax, FORMATS[op.format]))[:2]

    for name in (Q, K):
        operands(name, "fprop_w", to=to)(model)


def stale(linear: EmulatedLinear) -> None:
    """The weight of the first pass is kept."""
    real, kept = linear.weight_operands, []

    def weights(w: Tensor) -> Any:
        kept.append(real(w))
        return kept[0]

    linear.weight_operands = weights  # type: ignore[method-assign]  # of this layer alone


def frozen(linear: EmulatedLinear, tensor: str) -> None:
    """No amax of a tensor is recorded."""
    linear.states[tensor].update = lambda amax: None  # type: ignore[assignment]  # of this layer alone


def recent(linear: EmulatedLinear, tensor: str) -> None:
    """The history of a tensor holds the last amax alone."""
    linear.states[tensor].amax_history = torch.zeros(1)


def noisy(decibels: float) -> Callable[[Tensor], Tensor]:
    """Noise, so many dB below the result."""

    def add(y: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(y.shape, generator=generator) * y.detach().float().square().mean().sqrt()
        return y + (noise * 10 ** (-decibels / 20)).to(y.dtype)

    return add


def found(recipe: str, change: Change, place: str, words: str = "", *hidden: str) -> Fault:
    look = Numerics("places", recipe, "micro")
    return Fault(Kind.RECIPE, converted(change), (Finding(look, place, Blame.RECIPE, words=words, hidden=hidden),))


def up(gemm: str) -> str:
    return f"{gemm} agreement @ {UP}"


FORMATS_AND_ROUNDING = {
    "E5M2 for E4M3 in the input of one linear": found(
        "te-current",
        other(UP, "fprop_x", "wgrad_x", format="e5m2"),
        up("wgrad"),
        "fprop_x e5m2 tensor te-fp32",
        "dgrad",
    ),
    "E4M3 for E5M2 in the gradient of one linear": found(
        "te-current", other(UP, "dgrad_dy", "wgrad_dy", format="e4m3"), up("dgrad"), "dgrad_dy e4m3 tensor", "fprop"
    ),
    "E5M2 for E4M3 in one gradient of blocks": found(
        "te-block", other(UP, "dgrad_dy", format="e5m2"), up("dgrad"), "dgrad_dy e5m2 1x128 te-pow2", "wgrad"
    ),
    "one gradient rounded to nearest": found(
        "te-nvfp4", other(UP, "dgrad_dy", stochastic=False), up("dgrad"), "dgrad_dy e2m1 1x16 nvfp4 gives"
    ),
    "one linear without Hadamard": found(
        "te-nvfp4", other(UP, "wgrad_dy", "wgrad_x", hadamard=False), up("wgrad"), "", "fprop", "dgrad"
    ),
    "floor for round-up in one linear": found(
        "te-mxfp8", other(UP, "fprop_x", scale="e8m0-floor"), up("fprop"), "", "dgrad", "wgrad"
    ),
    "noise of half a decibel at one linear": found(
        "te-current", results(UP, noisy(37.5)), up("fprop"), "has 27.8 dB, and the recipe gives 28.4 dB"
    ),
    "noise in the model that the training loop converts": found(
        "te-current", results(UP, noisy(37.5)), up("fprop"), "has 27.8 dB, and the recipe gives 28.4 dB"
    ),
    "output of one linear 1% too large": found(
        "te-current", results(UP, lambda y: y * 1.01), up("fprop"), "this is what a gain of 1.01 gives"
    ),
    "input of one linear rounded once more": found(
        "te-current", inputs(UP, lambda x: x.float().to(torch.float8_e5m2).to(x.dtype)), up("fprop"), "has 23"
    ),
}
GEOMETRY = {
    "blocks along the other axis": found(
        "te-block", operands(UP, "fprop_x", to=across), up("fprop"), "fprop_x e4m3 128x1 te-pow2", "wgrad"
    ),
    "one scale for the blocks of one linear": found(
        "te-block", operands(UP, "fprop_x", to=made(tile=(0, 0))), up("fprop"), "fprop_x e4m3 tensor te-pow2", "dgrad"
    ),
    "blocks of 16 for blocks of 32": found(
        "te-mxfp8", other(DOWN, "fprop_x", tile=(1, 16)), f"fprop agreement @ {DOWN}", "fprop_x e4m3 1x16 e8m0-rceil"
    ),
    "blocks of 1x16 for 16x16 in one weight": found(
        "te-nvfp4", other(UP, "fprop_w", "dgrad_w", tile=(1, 16)), up("fprop"), "fprop_w e2m1 1x16 nvfp4", "wgrad"
    ),
    "one linear with scales of rows": found(
        "te-current", other(UP, "fprop_x", tile=(1, 0)), up("fprop"), "fprop_x e4m3 row te-fp32", "dgrad", "wgrad"
    ),
}
SCALES = {
    "scale of one linear 0.9 times too small": found(
        "te-current", operands(UP, "fprop_x", to=times(0.9)), up("fprop"), "another scale"
    ),
    "weights of queries and keys share a scale": found(
        "te-current", shared_scale, f"fprop agreement @ {K}", "another scale", f"wgrad agreement @ {K}"
    ),
    "amax of one gradient not recorded": found(
        "te-delayed", at(UP, lambda linear: frozen(linear, "dy")), up("dgrad"), "", "fprop"
    ),
    "history of one gradient has one amax": found(
        "te-delayed", at(UP, lambda linear: recent(linear, "dy")), up("dgrad"), "another scale", "fprop"
    ),
    "current scale in one linear": found(
        "te-delayed", other(UP, "fprop_x", "wgrad_x", history=0), up("fprop"), "fprop_x e4m3 tensor te-fp32", "dgrad"
    ),
    "weight of one linear not quantized anew": found("te-current", at(UP, stale), up("dgrad"), "of step 1", "wgrad"),
}
MOMENTS = {
    "first microbatch of one linear in BF16": found(
        "te-current",
        operands(UP, "fprop_x", "fprop_w", to=plain, microbatch=FIRST),
        f"misplaced fprop @ {UP}",
        f"fprop of {UP} in microbatch 0 of step 0 has",
    ),
    "last microbatch of one linear with an operand in BF16": found(
        "core-tensorwise",
        operands(UP, "dgrad_dy", to=plain, microbatch=LAST),
        up("dgrad"),
        "in microbatch 2 of step 0",
        "fprop",
    ),
    "last microbatch of one linear in E5M2": found(
        "te-current", operands(UP, "fprop_w", to=made(format="e5m2"), microbatch=LAST), up("fprop"), "fprop_w e5m2"
    ),
    "gradient of one linear lost in the first microbatch": found(
        "te-mxfp8", first_gradient_lost(UP), up("wgrad"), "in microbatch 0 of step 0 has 0.0 dB", "fprop", "dgrad"
    ),
}
FAULTS = FORMATS_AND_ROUNDING | GEOMETRY | SCALES | MOMENTS
