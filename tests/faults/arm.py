"""Faults of the model, the loss, the optimizer and the step in the recipe's arm alone. BF16's own canary does not see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.recipes.adapter import ConvertedModel
from fp8parity.records.cell import CONTROL_RECIPE
from fp8parity.training import loop, step, variants
from fp8parity.training.variants import Parts, Variant
from fp8parity.workload import rotary
from torch import Tensor, nn

from faults import model as models
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import BothArms, Canary
from faults.plants import Plant

RECIPES = ("te-current", "te-delayed", "te-block", "te-mxfp8", "te-nvfp4", "ao-tensorwise")
"""The faults take turns with them."""
BLOCK = "layers.0"


def of_gradient(name: str, change: Callable[[Tensor], Tensor]) -> Variant:
    """The gradient of one parameter, changed when the backward pass has computed it."""

    def plant(parts: Parts) -> Parts:
        dict(zip(parts.optimizer.names, parts.optimizer.params, strict=True))[name].register_hook(change)
        return parts

    return Variant("", "", plant)


def of_output(name: str, change: Callable[[Tensor], Tensor]) -> Variant:
    """The output of one module."""

    def plant(parts: Parts) -> Parts:
        parts.model.get_submodule(name).register_forward_hook(lambda _, args, y: change(y))
        return parts

    return Variant("", "", plant)


def of_object(path: str, name: str, value: Callable[[Any], Any]) -> Variant:
    """An attribute of one object of a run."""

    def plant(parts: Parts) -> Parts:
        owner = parts.optimizer if path == "optimizer" else parts.model.get_submodule(path)
        setattr(owner, name, value(owner))
        return parts

    return Variant("", "", plant)


def converted(change: Callable[[Any], object]) -> Plant:
    """What the training loop converts is changed after the conversion, if it has quantized linears."""
    real = loop.apply

    def apply(*args: Any, **options: Any) -> ConvertedModel:
        made = real(*args, **options)
        if made.recipe.name != CONTROL_RECIPE:
            change(made.model)
        return made

    return lambda patch: patch.setattr(loop, "apply", apply)


def stepped(change: Callable[..., Tensor]) -> Plant:
    """The step of quantized models: ``change(real, converted, optimizer, schedule, batches, loss)``."""
    real = step.update

    def update(made: ConvertedModel, *args: Any) -> Tensor:
        return real(made, *args) if made.recipe.name == CONTROL_RECIPE else change(real, made, *args)

    return lambda patch: patch.setattr(step, "update", update)


def half_signs(g: Tensor) -> Tensor:
    return g * (1 - 2 * (torch.arange(g.shape[-1], device=g.device) % 2)).to(g.dtype)


def smoothed(module: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(module(inputs).float().flatten(0, 1), targets.flatten(), label_smoothing=0.01)


def decayed_norms(parts: Parts) -> Parts:
    for group in parts.optimizer.groups:
        group["weight_decay"] = parts.schedule.weight_decay
    return parts


def scaled_gather(factor: float) -> Callable[[Any], Any]:
    return lambda o: lambda f, real=o.gather: real(f * factor)


def rounded(method: str, part: Callable[[Any], Tensor]) -> Callable[[Any], Any]:
    """Round a part of each master weight to BF16 after a method of the optimizer."""

    def wrapped(o: Any, real: Any) -> Callable[[float], Any]:
        def taken(factor: float) -> Any:
            report = real(factor)
            for m in o.masters:
                part(m).copy_(part(m).bfloat16())
            return report

        return taken

    return lambda o: wrapped(o, getattr(o, method))


def twice(o: Any) -> Any:
    return lambda clip, real=o.step: (real(clip), real(clip))[1]


def without_residual(module: Any) -> None:
    block = module.get_submodule(BLOCK)
    block.forward = lambda x, rope: (y := block.attention(block.attention_norm(x), rope)) + block.mlp(block.mlp_norm(y))


def angles_in_bf16(module: Any) -> None:
    """RoPE computes its angles in BF16."""
    exact = rotary.angles

    def rope(length: int, device: torch.device) -> Tensor:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(rotary, "angles", lambda *args: exact(*args).bfloat16().double())
            return rotary.rotations(module.config.rope_base, module.config.head_dim, length, device)

    module.rope = rope


def rope_of(base: float) -> Callable[[Any], None]:
    def change(module: Any) -> None:
        module.rope = lambda length, device: rotary.rotations(base, module.config.head_dim, length, device)

    return change


def _quantized_in_training(real: Callable[[Tensor], Tensor], linear: EmulatedLinear, x: Tensor) -> Tensor:
    return real(x) if torch.is_grad_enabled() else F.linear(x, linear.weight, linear.bias)


def unquantized_validation(module: Any) -> None:
    """Without gradients, quantized linears compute in BF16."""
    for linear in (m for m in module.modules() if isinstance(m, EmulatedLinear)):
        linear.forward = partial(_quantized_in_training, linear.forward, linear)  # type: ignore[method-assign]


def exact_gelu(module: Any) -> None:
    mlp = module.get_submodule(f"{BLOCK}.mlp")
    mlp.forward = lambda x: mlp.down_proj(F.gelu(mlp.gate_proj(x)) * mlp.up_proj(x))


def larger_head(module: Any) -> None:
    module.lm_head.weight.data.mul_(1.03125)


def norm_in_bf16(module: Any) -> None:
    norm = module.get_submodule(f"{BLOCK}.mlp_norm")
    norm.forward = lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.eps) * norm.weight


def first_lost(real: Any, made: Any, optimizer: Any, schedule: Any, batches: Any, *loss: Any) -> Tensor:
    return real(made, optimizer, schedule, batches[1:], *loss)


def shifted_rows(real: Any, made: Any, optimizer: Any, schedule: Any, batches: Any, *loss: Any) -> Tensor:
    return real(made, optimizer, schedule, [(x.roll(1, 0), y.roll(1, 0)) for x, y in batches], *loss)


def unclipped(real: Any, made: Any, optimizer: Any, schedule: Any, batches: Any, *loss: Any) -> Tensor:
    return real(made, optimizer, dataclasses.replace(schedule, clip=1e9), batches, *loss)


def late_warmup(patch: pytest.MonkeyPatch) -> None:
    real = loop.make

    def make(made: ConvertedModel, optimizer: Any, schedule: Any, *args: Any) -> Any:
        return real(made, optimizer, dataclasses.replace(schedule, warmup=schedule.warmup + 1), *args)

    patch.setattr(loop, "make", make)


def half_reported(real: Any, *args: Any) -> Tensor:
    report = real(*args)
    report[0] *= 0.999
    return report


def half_validated(patch: pytest.MonkeyPatch) -> None:
    real = loop.validate
    patch.setattr(loop, "validate", lambda made, loss, batches, device: real(made, loss, batches[::2], device))


UPDATE = "update gain @ embedding.weight"
GRADIENT, LINEAR, LOSS = "the gradient of this parameter", "the quantized linear", "another function of the logits"
MODULE = "this module computes another function of its input"
TABLE: dict[str, tuple[Variant | Plant, str, str]] = {
    "gradient of the embedding 2% large": (
        of_gradient("embedding.weight", lambda g: g * 1.02), "parameter gradient gain @ embedding.weight", GRADIENT,
    ),
    "gradient of the head with flipped signs": (
        of_gradient("lm_head.weight", half_signs), "parameter gradient gain @ lm_head.weight", GRADIENT,
    ),
    "gradient of a quantized weight a tenth large": (
        of_gradient(f"{BLOCK}.attention.o_proj.weight", lambda g: g * 1.1), f"wgrad gain @ {BLOCK}.attention.o_proj", LINEAR,
    ),
    "queries a tenth large": (
        of_output(f"{BLOCK}.attention.q_proj", lambda y: y * 1.1), f"fprop gain @ {BLOCK}.attention.q_proj", LINEAR,
    ),
    "embedding a hundredth large": (
        of_output("embedding", lambda y: y * 1.015625), "module gain @ embedding", MODULE,
    ),
    "mask off by one": (
        of_object(f"{BLOCK}.attention", "attend", lambda _: variants._without_self),
        f"input gain @ {BLOCK}.attention.o_proj", "attention",
    ),
    "positions of another base": (converted(rope_of(500_000.0)), f"input sqnr @ {BLOCK}.attention.o_proj", "attention"),
    "residual of the attention dropped": (converted(without_residual), f"input gain @ {BLOCK}.mlp.gate_proj", "residual"),
    "another activation in one block": (converted(exact_gelu), f"input gain @ {BLOCK}.mlp.down_proj", "the activation"),
    "one norm in BF16": (converted(norm_in_bf16), f"module sqnr @ {BLOCK}.mlp_norm", MODULE),
    "head 3% large after the conversion": (converted(larger_head), "initial weight sqnr @ lm_head.weight", "the conversion"),
    "hidden label smoothing": (models.loss(smoothed), "output gradient gain @ logits", LOSS),
    "loss rounded to BF16": (variants.FAULTS[-1], "loss gap @ all steps", LOSS),
    "microbatches summed, not averaged": (
        of_object("optimizer", "gather", scaled_gather(2.0)), "gradient sum gain @ embedding.weight", "another count",
    ),
    "second microbatch lost in one arm": (
        Variant("", "", models._second_lost), "gradient sum gain @ embedding.weight", "the sum over the microbatches",
    ),
    "first microbatch never taken": (stepped(first_lost), "microbatches @ all steps", "each microbatch once"),
    "sums in BF16": (
        of_object("optimizer", "gather", rounded("gather", lambda m: m.grad)), "gradient sum gain @ embedding.weight", "the sum over the microbatches",
    ),
    "tokens of the next rows": (stepped(shifted_rows), "tokens sqnr @ embedding", "other tokens"),
    "clipping does not act": (stepped(unclipped), UPDATE, "clipping"),
    "norms decay": (Variant("", "", decayed_norms), f"update gain @ {BLOCK}.attention_norm.weight", "only norms and biases"),
    "second moment of another beta": (models.optimizer(betas=(0.9, 0.93)), "update sqnr @ embedding.weight", "betas"),
    "warm-up a step late": (late_warmup, UPDATE, "warm-up"),
    "learning rate 3% high in one arm": (variants.FAULTS[-2], UPDATE, "the learning rate"),
    "step taken twice": (of_object("optimizer", "step", twice), "optimizer steps @ all steps", "more or less than once"),
    "master weights in BF16": (of_object("optimizer", "step", rounded("step", lambda m: m.data)), UPDATE, "AdamW"),
    "weights of the step before": (
        next(f for f in variants.FAULTS if f.name == "weights stale"), "weight sqnr @ embedding.weight", "stale",
    ),
    "logits capped at 30": (
        of_output("lm_head", lambda y: 30 * torch.tanh(y / 30)), "linear gain @ lm_head", "stays in BF16",
    ),
    "validation without quantization": (
        converted(unquantized_validation), f"validation fprop sqnr @ {BLOCK}.attention.q_proj", "validation",
    ),
    "every second batch of the validation": (half_validated, "validation batches @ all steps", "each batch once"),
    "reported loss a thousandth low": (stepped(half_reported), "reported loss gap @ all steps", "reports another loss"),
    "gradient of the last norm a tenth small": (
        of_gradient("norm.weight", lambda g: g * 0.9), "parameter gradient gain @ norm.weight", GRADIENT,
    ),
}  # fmt: skip
FAULTS = {
    name: Fault(
        Kind.FRAMEWORK,
        plant,
        (Finding(Canary(recipe=RECIPES[i % len(RECIPES)], model="nano"), place, Blame.RECIPE, cause=cause),),
    )
    for i, (name, (plant, place, cause)) in enumerate(TABLE.items())
} | {
    "second moment of another beta in both arms": Fault(
        Kind.FRAMEWORK,
        models.optimizer(betas=(0.9, 0.93)),
        (
            Finding(
                BothArms(recipe="te-current", model="nano"),
                "update sqnr @ embedding.weight",
                Blame.FRAMEWORK,
                cause="betas",
                words="BF16 changed: its canary fails, first in update ",
            ),
        ),
    )
}
