"""Faults of what a linear layer keeps: scales, amax histories, cached weights, and what recompute and checkpoints need of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from fp8parity.numerics import emulation
from fp8parity.numerics.emulation import DelayedScale, EmulatedLinear
from fp8parity.recipes.adapter import plain_checkpoint
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from faults import plants
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Measured, Numerics
from faults.plants import method

Real = Callable[..., Any]


kept = partial(Fault, Kind.STATE)


def never_refresh(real: Real) -> Real:
    def weights(self: EmulatedLinear, w: Tensor) -> Any:
        if self.cached_weight[0] is None:
            fprop, dgrad = real(self, w)
            self.cached_weight = [fprop, dgrad]
        return self.cached_weight[0], self.cached_weight[1]

    return weights


def rescaled_cache(real: Real) -> Real:
    """Later microbatches take the cached codes with the scale of the next use."""

    def weights(self: EmulatedLinear, w: Tensor) -> Any:
        cached = emulation._phase.first_microbatch is False and self.cached_weight[0] is not None
        fprop, dgrad = real(self, w)
        return ((fprop[0], fprop[1] * 1.7), dgrad) if cached else (fprop, dgrad)

    return weights


def only_forward(real: Real) -> Real:
    """The amax of gradients is not recorded."""
    return lambda self, amax: None if self.format.name == "e5m2" else real(self, amax)


class _Current:
    """Stands for a queue of kept scales, and hands out the present one."""

    def __init__(self, state: DelayedScale) -> None:
        self.state = state

    def append(self, scale: Tensor) -> None:
        pass

    def popleft(self) -> Tensor:
        return self.state.scale


class _ByReference(dict[DelayedScale, Any]):
    def setdefault(self, state: DelayedScale, default: Any = None) -> Any:
        return super().setdefault(state, _Current(state))


def kept_by_reference(patch: pytest.MonkeyPatch) -> None:
    """What recompute should restore is the buffer itself, which has changed since."""

    def contexts() -> Any:
        stash = _ByReference()
        return emulation._phase_with(stash=stash), emulation._phase_with(stash=stash, recompute=True)

    patch.setattr("fp8parity.recipes.adapters.emulated._checkpoint", _with(contexts))


def _with(contexts: Callable[[], Any]) -> Callable[..., Any]:
    return partial(checkpoint, use_reentrant=False, context_fn=contexts)


def recomputed_in_bf16(patch: pytest.MonkeyPatch) -> None:
    """Recompute leaves the recipe's region: its forward pass has no quantized operand."""
    outside: list[bool] = []

    @contextmanager
    def recompute() -> Iterator[None]:
        outside.append(True)
        yield
        outside.pop()

    def operand(self: EmulatedLinear, name: str, x: Tensor) -> Any:
        return (x, torch.ones(())) if outside and name.startswith("fprop") else real(self, name, x)

    real = EmulatedLinear.operand
    patch.setattr("fp8parity.recipes.adapters.emulated._checkpoint", _with(lambda: (nullcontext(), recompute())))
    patch.setattr(EmulatedLinear, "operand", operand)


def updates_in_evaluation(real: Real) -> Real:
    """Scales follow each use, also those of held-out text."""

    def operand(self: EmulatedLinear, name: str, x: Tensor) -> Any:
        self.evaluates = False
        return real(self, name, x)

    return operand


def gathered_for_evaluation(real: Real) -> Real:
    """An evaluation leaves the weights rounded to E5M2."""

    def forward(self: EmulatedLinear, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            self.weight.copy_(self.weight.to(torch.float8_e5m2))
        return real(self, x)

    return forward


not_saved = method(DelayedScale, "register_buffer", lambda f: lambda self, n, t: f(self, n, t, persistent=False))
"""The scales and amaxes are not in the checkpoint."""


def not_loaded(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint is loaded, and the scales and amaxes stay those of the new model."""
    patch.setattr(DelayedScale, "_load_from_state_dict", lambda self, *a, **k: None)


def state(recipe: str, place: str, cause: str = "") -> tuple[Finding, ...]:
    return (Finding(Measured("state", recipe), f"{place} @ tiny steps", Blame.RECIPE, cause=cause),)


RECOMPUTED, CACHED = "recomputed activations", "cached weights"


def twin(recipe: str, option: str, cause: str = "", metric: str = "twin difference") -> Finding:
    return Finding(Measured("twins", recipe), f"{metric} @ {option}", Blame.RECIPE, cause=cause)


def detached(block: Callable[..., Any], x: Tensor, *args: Tensor) -> Any:
    """Recompute whose backward pass ends at the block."""
    return plain_checkpoint(block, x.detach(), *args)


FAULTS = {
    "option for a weight cache does nothing": kept(
        lambda p: p.setattr(emulation, "microbatch", lambda first: nullcontext()),
        (twin("te-block", CACHED, metric="switched"),),
        "torchao 2251",
    ),
    "recompute drops a gradient": kept(
        lambda p: p.setattr("fp8parity.recipes.adapters.emulated._checkpoint", detached),
        (twin("te-current", RECOMPUTED, "by up to 1e+02%"),),
        "TE 3172",
    ),
    "amax never recorded": kept(
        method(DelayedScale, "update", lambda f: lambda self, amax: None),
        state("te-delayed", "accumulated sqnr"),
        "torchtitan 698",
    ),
    "amax of gradients never recorded": kept(
        method(DelayedScale, "update", only_forward),
        (Finding(Numerics("gemm", "te-delayed"), "dgrad sqnr @ near-zero", Blame.RECIPE, hidden=("fprop",)),),
        "TE 1190, 1254",
    ),
    "weight cache never refreshed": kept(
        method(EmulatedLinear, "weight_operands", never_refresh),
        state("te-current", "cached weight sqnr"),
        "TE 3051",
    ),
    "scale of a cached weight updated": kept(
        method(EmulatedLinear, "weight_operands", rescaled_cache),
        (twin("te-current", CACHED),),
        "TE 1047",
    ),
    "recompute outside of the recipe's contexts": kept(
        lambda p: p.setattr("fp8parity.recipes.adapters.emulated._checkpoint", plain_checkpoint),
        (twin("te-delayed", RECOMPUTED),),
        "TE 1190, 1254, 1723",
    ),
    "recompute in BF16": kept(
        recomputed_in_bf16,
        (twin("te-current", RECOMPUTED, "outputs and gradients differ from those without the option (recomputed act"),),
        "TE 1568, 3284",
    ),
    "recompute keeps scales by reference": kept(kept_by_reference, (twin("te-delayed", RECOMPUTED),), "TE 1723"),
    "transposed store wrong in some calls": kept(
        plants.racing(0.25), state("te-block", "repeat difference"), "torchao 4652, triton 11111"
    ),
    "evaluation updates delayed scales": kept(
        method(EmulatedLinear, "operand", updates_in_evaluation),
        state("te-delayed", "evaluation difference", "1 of 1 microbatches after an evaluation differ"),
    ),
    "evaluation leaves other weights": kept(
        method(EmulatedLinear, "forward", gathered_for_evaluation),
        state("te-block", "evaluation difference", "1 of 1 microbatches after an evaluation differ"),
        "Megatron-LM 4562, Megatron-Bridge 3727",
    ),
    "zero amax without an epsilon in a microbatch of padding": kept(
        plants.rule("te-fp32", lambda f: lambda amax, fmt: fmt.max / amax),
        state("te-current", "padding gradient"),
        "torchao 3356, 4713",
    ),
}
