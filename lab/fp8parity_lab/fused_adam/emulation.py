"""The arithmetic of Transformer Engine's ``FusedAdam``, for machines without TE or a GPU.

``pytest -p fp8parity_lab.fused_adam.emulation`` trains the models ``*-te-adam-*`` with it, and records say so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.numerics.formats import FORMATS
from fp8parity.workload.optimizers import OPTIMIZERS
from torch import Tensor
from torch.optim import Optimizer

NAMES = tuple(name for name, found in OPTIMIZERS.items() if found.maker.endswith(":FusedAdam"))
"""The optimizers of TE's class: one for each dtype of moments."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure() -> None:
    """Put this arithmetic in place of TE's, before models are refused for want of it."""
    emulate()


def emulate() -> None:
    """Put this arithmetic in place of TE's."""
    maker = f"{__name__}:FusedAdam"
    OPTIMIZERS.update({n: replace(OPTIMIZERS[n], maker=maker, gpu=False, emulated=True) for n in NAMES})


class FusedAdam(Optimizer):
    """Step FP32 weights with the arithmetic of Transformer Engine's ``FusedAdam``.

    Written from TE 2.20.2 (``pytorch/optimizers/fused_adam.py``, ``common/multi_tensor/adam.cu``): moments are read in
    FP32 and stored again in their dtype, FP16 with its largest value at half of the range, FP8 E4M3 at 448.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], eps: float, *,
        exp_avg_dtype: torch.dtype, exp_avg_sq_dtype: torch.dtype,
        master_weights: bool = False, master_weight_dtype: torch.dtype = torch.float32,
        store_param_remainders: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.dtypes = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        self.masters, self.master_dtype, self.remainders = master_weights, master_weight_dtype, store_param_remainders

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # as the package's, it returns no loss
        for group in self.param_groups:
            (beta1, beta2), lr = group["betas"], group["lr"]
            group["step"] = t = group.get("step", 0) + 1
            for p in group["params"]:
                state, g, w = self.state[p], p.grad.float(), self._weight(p)
                m, v = (state.get(name, torch.zeros_like(g)) for name in self.dtypes)
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                update = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
                self._keep(p, w - lr * (update + group["weight_decay"] * w))
                state.update({n: kept(x, self.dtypes[n]) for n, x in (("exp_avg", m), ("exp_avg_sq", v))})

    def get_unscaled_state(self, param: Tensor, state_name: str) -> Tensor:
        """Return a state in FP32, or remainders in int16, as the package's."""
        found: Tensor = self.state[param][state_name]
        return found

    def _weight(self, p: Tensor) -> Tensor:
        part = self.state[p].get("master_param")
        if part is None:
            return p.float()
        return joined(p, part) if self.remainders else part  # type: ignore[no-any-return]  # a state is anything

    def _keep(self, p: Tensor, weight: Tensor) -> None:
        if self.remainders:
            top, self.state[p]["master_param"] = divided(weight)
            p.copy_(top)
            return
        if self.masters:
            full = self.master_dtype == torch.float32
            self.state[p]["master_param"] = weight if full else kept(weight, self.master_dtype)
        p.copy_(weight)


def divided(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest BF16 weight, and the lower bits of an FP32 weight as int16."""
    bits = weight.view(torch.int32)
    lower = bits.to(torch.int16)
    return ((bits >> 16) + (lower < 0)).to(torch.int16).view(torch.bfloat16), lower


def joined(weight: Tensor, lower: Tensor) -> Tensor:
    """Return the FP32 weight of a BF16 weight and its lower 16 bits."""
    upper = weight.view(torch.int16).int() - (lower < 0).int()
    return ((upper << 16) | (lower.int() & 0xFFFF)).view(torch.float32)


def kept(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the FP32 values of a moment that was stored in ``dtype``; uint8 is FP8."""
    if dtype == torch.bfloat16:
        return x.bfloat16().float()
    top = FORMATS["e4m3"].max if dtype == torch.uint8 else torch.finfo(torch.float16).max / 2
    scale = x.abs().amax() / top
    rounded = (x * torch.where(scale > 0, 1 / scale, 0)).to(torch.float8_e4m3fn if dtype == torch.uint8 else dtype)
    return rounded.float() * scale
