"""A stand-in for Transformer Engine: what its adapter uses of the package, with enough state to be wrong about."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.checks import attention
from fp8parity.numerics.scaling import quantize
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import adapters
from fp8parity.recipes.adapter import plain_checkpoint
from narrowed import some
from sessions import shorten
from torch import nn

OP = Operand("e4m3", scale="te-fp32")


def rounded(x: torch.Tensor) -> torch.Tensor:
    return quantize(x.detach().as_subclass(torch.Tensor).flatten(0, -2), OP).dequantize().view(x.shape).to(x.dtype)


class Primary(torch.Tensor):
    """A weight that is quantized whenever it is written."""

    requantizes = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            if func is torch.Tensor.detach:
                return out.as_subclass(cls)
            if func in (torch.Tensor.copy_, torch._foreach_copy_):
                for t in args[0] if isinstance(args[0], list) else [args[0]]:
                    if isinstance(t, cls) and cls.requantizes:
                        t.data.copy_(rounded(t))
        return out


def recomputed(block: Any, *args: Any, use_reentrant: bool = True) -> Any:
    return plain_checkpoint(block, *args)


class StandIn:
    """What the adapter uses of ``transformer_engine``: enough state to be wrong about."""

    def __init__(self) -> None:
        self.primary, self.recipe, self.refreshes = False, None, True
        self.scale_updates: list[bool] = []

    @contextmanager
    def quantized_model_init(self, enabled, recipe):
        self.primary = enabled
        yield
        self.primary = False

    @contextmanager
    def autocast(self, enabled, recipe, amax_reduction_group=None):
        self.recipe = recipe
        yield
        self.recipe = None

    def linear(outer):
        class Linear(nn.Linear):
            def __init__(self, k, n, bias, params_dtype, device):
                super().__init__(k, n, bias=bias, dtype=params_dtype, device=device)
                self.cache, self.primary = None, outer.primary
                if self.primary:
                    self.weight = nn.Parameter(self.weight.detach().as_subclass(Primary))

            def forward(self, x, is_first_microbatch=None):
                weight = self.weight.as_subclass(torch.Tensor)
                again = is_first_microbatch is not False and (outer.refreshes or self.cache is None)
                code = rounded(weight) if is_first_microbatch is None or again else some(self.cache)
                self.cache = None if is_first_microbatch is None else code
                return F.linear(x + (rounded(x) - x).detach(), weight + (code - weight).detach())

        return Linear

    def attention(outer):
        class DotProductAttention(nn.Module):
            def __init__(self, heads, dim, **options):
                super().__init__()

            def forward(self, q, k, v):
                if outer.recipe is not None and outer.recipe.fp8_dpa and outer.refreshes:
                    q, k, v = (t + (rounded(t) - t).detach() for t in (q, k, v))
                return attention.reference()(q, k, v)

        return DotProductAttention


@dataclass
class Float8CurrentScaling:
    fp8_dpa: bool = False
    backward_override: str | None = None
    fp8_format = SimpleNamespace(name="HYBRID")
    fp8_quant_fwd_inp = SimpleNamespace(power_2_scale=False)


@dataclass
class AttentionParams:
    qkv_layout: str = ""
    fp8_meta: object = None


class AttentionLogging:
    _log_level = logging.WARNING


def forget() -> None:
    """Forget the adapters that import TE: the next import makes them anew."""
    for name in ("te", "te_attention", "te_fused", "te_recipes", "te_switches"):
        sys.modules.pop(f"{adapters.__name__}.{name}", None)
        vars(adapters).pop(name, None)


@pytest.fixture
def stand_in(monkeypatch):
    """``transformer_engine`` in ``sys.modules``, and the adapters that import it forgotten before and after."""
    outer = StandIn()

    def backend(params):
        logger = logging.getLogger("DotProductAttention")
        logger.setLevel(AttentionLogging._log_level)
        logger.debug("Disabling FusedAttention for %s", params.qkv_layout)
        logger.debug("Selected backend = none")
        return False, None, outer.refreshes, 2 if outer.refreshes else None, False, []

    utils = {"AttentionParams": AttentionParams, "AttentionLogging": AttentionLogging, "get_attention_backend": backend}
    pytorch = {
        "Linear": outer.linear(), "GroupedLinear": nn.Module, "DotProductAttention": outer.attention(), "autocast": outer.autocast, "checkpoint": recomputed,
        "quantized_model_init": outer.quantized_model_init,
    }  # fmt: skip
    manager = SimpleNamespace(
        reset=lambda: None, reduce_and_update_fp8_tensors=lambda forward: outer.scale_updates.append(forward)
    )
    contents = {
        "": {}, ".common": {}, ".common.recipe": {"Float8CurrentScaling": Float8CurrentScaling}, ".pytorch": pytorch,
        ".pytorch.quantization": {"FP8GlobalStateManager": manager}, ".pytorch.attention": {},
        ".pytorch.attention.dot_product_attention": {}, ".pytorch.attention.dot_product_attention.utils": utils,
    }  # fmt: skip
    for name, attributes in contents.items():
        module = ModuleType(f"transformer_engine{name}")
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if name:
            parent, _, leaf = module.__name__.rpartition(".")
            setattr(sys.modules[parent], leaf, module)
    shorten(monkeypatch)
    forget()
    yield outer
    forget()
