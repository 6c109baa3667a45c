"""Faults of the model, the loss, the optimizer and the data. The canary names the place; recorded runs say what the losses show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.records.cell import DEFAULT_CORPUS
from fp8parity.training import variants
from fp8parity.training.variants import Parts, Variant
from fp8parity.workload import corpus, models
from fp8parity.workload.models import RMSNorm, SwiGLU
from torch import Tensor, nn

from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Canary
from faults.runs import Recorded

FIRST = {
    "outputs shifted": "output direction @ layers.0.attention.q_proj",
    "one output shifted": "output direction @ layers.1.mlp.up_proj",
    "attention scaled": "output scale @ layers.0.attention.q_proj",
    "attention without self": "output scale @ layers.0.attention.o_proj",
    "attention without positions": "output scale @ layers.0.attention.o_proj",
    "small gradients flushed": "gradient scale @ lm_head.weight",
    "embedding gradient flipped": "gradient direction @ embedding.weight",
    "layer not updated": "gradient scale @ layers.1.mlp.up_proj.weight",
    "weights stale": "update scale @ embedding.weight",
    "learning rate high": "update scale @ embedding.weight",
    "loss in BF16": "bf16 loss error @ initial weights",
}
"""The first number of the canary that each standard fault moves."""
UPDATE = ("update scale", "update direction")


def _standard(fault: Variant) -> Fault:
    return model(
        fault,
        (
            Finding(Canary(), FIRST[fault.name], Blame.FRAMEWORK),
            Finding(Recorded("bf16"), "loss", Blame.FRAMEWORK_CHANGED, "drift"),
            Finding(Recorded(), "loss" if fault.name != "attention scaled" else "tail gap", Blame.RECIPE_CHANGED),
        ),
        f"made up: {fault.what}",
    )


model, framework = partial(Fault, Kind.MODEL), partial(Fault, Kind.FRAMEWORK)


def canary(place: str, *alone: str) -> tuple[Finding, ...]:
    return (Finding(Canary(alone), place, Blame.FRAMEWORK),)


def optimizer(**changes: object) -> Variant:
    """Other settings of the optimizer. Weight decay changes only where there is some."""

    def plant(parts: Parts) -> Parts:
        for group in parts.optimizer.groups:
            group.update({k: v for k, v in changes.items() if k != "weight_decay" or group["weight_decay"]})
        return parts

    return Variant("", "", plant)


def schedule(**changes: Any) -> Variant:
    return Variant(
        "", "", lambda parts: dataclasses.replace(parts, schedule=dataclasses.replace(parts.schedule, **changes))
    )


def loss(of: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Variant:
    return Variant("", "", lambda parts: dataclasses.replace(parts, loss=of))


def _hyper(place: str, plant: Variant) -> Fault:
    return framework(plant, canary(place, *UPDATE))


def norms_in_bf16(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        RMSNorm, "forward", lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight
    )


def larger_weights(patch: pytest.MonkeyPatch) -> None:
    build = models.build
    patch.setattr(
        models, "build", lambda c, seed, **kw: build(dataclasses.replace(c, init_std=c.init_std * 1.01), seed, **kw)
    )


def other_tokens(patch: pytest.MonkeyPatch) -> None:
    stream = corpus.load(DEFAULT_CORPUS)
    patch.setattr(corpus, "load", lambda name: dataclasses.replace(stream, train=stream.train.roll(1)))


def other_validation(patch: pytest.MonkeyPatch) -> None:
    stream = corpus.load(DEFAULT_CORPUS)
    patch.setattr(corpus, "load", lambda name: dataclasses.replace(stream, validation=stream.validation.roll(1)))


def _activation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SwiGLU, "forward", lambda self, x: self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x)))


def _last_lost(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs)[:, :-1].float().flatten(0, 1), targets[:, :-1].flatten())


def _second_lost(parts: Parts) -> Parts:
    """The second of two microbatches is not added."""
    gather, calls = parts.optimizer.gather, iter(range(1000))

    def half(factor: float) -> None:
        if next(calls) % 2 == 0:
            gather(factor)
        else:
            for p in parts.optimizer.params:
                p.grad = None

    parts.optimizer.gather = half  # type: ignore[method-assign]  # the fault replaces the method of one object
    return parts


FAULTS = {
    **{fault.name: _standard(fault) for fault in variants.FAULTS},
    "eps of the optimizer": _hyper("update scale @ embedding.weight", optimizer(eps=1.1e-4)),
    "weight decay of the optimizer": _hyper("update scale @ embedding.weight", optimizer(weight_decay=1.05)),
    "warmup of the optimizer": _hyper("update scale @ embedding.weight", schedule(warmup=1)),
    # FP32 computes the same. Only the BF16 model shows that norms are no longer computed in FP32.
    "norms in BF16": model(norms_in_bf16, canary("bf16 output sqnr @ layers.0.attention_norm"), "torchtitan 1056"),
    "initial weights 1% larger": model(larger_weights, canary("weight scale @ layers.0.attention.q_proj.weight")),
    "another order of tokens": framework(other_tokens, canary("batch checksum @ step 0")),
    "other validation windows": framework(other_validation, canary("batch checksum @ validation")),
    "another activation": model(_activation, canary("output scale @ layers.0.mlp.down_proj")),
    "last token without a loss": model(loss(_last_lost), canary("loss @ initial weights")),
    "every second microbatch lost": framework(Variant("", "", _second_lost), canary("gradient scale @ lm_head.weight")),
}
