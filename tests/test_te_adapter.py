"""The TE adapter on a stand-in for the package: weight caches, quantised weights, FP8 attention; planted faults are found."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fp8parity.checks import attention, short_run, state
from fp8parity.numerics.scaling import quantise
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import adapters
from fp8parity.recipes.conversion import plain_checkpoint
from narrowed import some
from sessions import cell, shorten
from torch import nn

from conftest import measured, subject

OP = Operand("e4m3", scale="te-fp32")


def rounded(x: torch.Tensor) -> torch.Tensor:
    return quantise(x.detach().as_subclass(torch.Tensor).flatten(0, -2), OP).dequantise().view(x.shape).to(x.dtype)


class Primary(torch.Tensor):
    """A weight that is quantised whenever it is written."""

    requantises = True

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            out = func(*args, **(kwargs or {}))
            if func is torch.Tensor.detach:
                return out.as_subclass(cls)
            if func in (torch.Tensor.copy_, torch._foreach_copy_):
                for t in args[0] if isinstance(args[0], list) else [args[0]]:
                    if isinstance(t, cls) and cls.requantises:
                        t.data.copy_(rounded(t))
        return out


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
                return attention.reference(q, k, v)

        return DotProductAttention


@dataclass
class Float8CurrentScaling:
    fp8_dpa: bool = False
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
    for name in ("te", "te_attention", "te_fused", "te_recipes"):
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
        "Linear": outer.linear(), "DotProductAttention": outer.attention(), "autocast": outer.autocast, "checkpoint": plain_checkpoint,
        "quantized_model_init": outer.quantized_model_init,
    }  # fmt: skip
    manager = SimpleNamespace(reset=lambda: None, reduce_and_update_fp8_tensors=lambda forward: outer.scale_updates.append(forward))
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


@pytest.mark.slow
def test_te_caches_and_quantised_weights_follow_the_masters(session, stand_in):
    found = measured(state.measure(subject(session, "te-current", "native")))
    assert {v for k, v in found.items() if "difference" in k} == {0.0}
    assert len(found) == 16
    plain = found["accumulated sqnr @ tiny steps"]
    assert 20 < plain < 32
    assert all(abs(found[f"{weights} sqnr @ tiny steps"] - plain) < 0.5 for weights in ("cached weight", "quantised weights"))


def test_older_te_names_serve_as_well(session, stand_in, monkeypatch):
    """Before TE 2.9 the region was fp8_autocast(fp8_recipe=...), quantised weights fp8_model_init, and the state manager's module fp8."""
    now = measured(state.measure(subject(session, "te-current", "native")))
    forget()
    pytorch, manager = sys.modules["transformer_engine.pytorch"], sys.modules["transformer_engine.pytorch.quantization"]
    entered = []

    def fp8_autocast(enabled, fp8_recipe, fp8_group=None):
        entered.append(type(fp8_recipe).__name__)
        return stand_in.autocast(enabled, fp8_recipe)

    for name in ("autocast", "quantized_model_init", "quantization"):
        monkeypatch.delattr(pytorch, name)
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch.quantization")
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch.fp8", manager)
    monkeypatch.setattr(pytorch, "fp8_autocast", fp8_autocast, raising=False)
    monkeypatch.setattr(pytorch, "fp8_model_init", stand_in.quantized_model_init, raising=False)
    assert measured(state.measure(subject(session, "te-current", "native"))) == now
    assert set(entered) == {"Float8CurrentScaling"}


def test_a_stale_te_cache_is_found(session, stand_in):
    one = subject(session, "te-current", "native")
    sound = short_run.ShortRun(one).followed(cache=True)
    stand_in.refreshes = False
    assert short_run.ShortRun(one).followed(cache=True) < sound - 1.5
    assert abs(short_run.ShortRun(one).followed() - sound) < 0.5


def test_quantised_weights_that_updates_do_not_reach_are_found(session, stand_in, monkeypatch):
    one = subject(session, "te-current", "native")
    primary = replace(one, recipe=replace(one.recipe, options=(("quantised_weights", True),)))
    sound = short_run.ShortRun(primary).followed()
    real = short_run.MasterWeightOptimizer.step

    def lost(self, clip):
        before = [p.detach().clone() for p in self.params]
        norm = real(self, clip)
        for p, old in zip(self.params, before, strict=True):
            if isinstance(p, Primary):
                p.data = old
        return norm

    monkeypatch.setattr(short_run.MasterWeightOptimizer, "step", lost)
    assert short_run.ShortRun(primary).followed() < sound - 1.5


def test_masters_that_start_from_dequantised_weights_are_found(session, stand_in, monkeypatch):
    one = subject(session, "te-current", "native")
    primary = replace(one, recipe=replace(one.recipe, options=(("quantised_weights", True),)))
    assert isinstance(short_run.ShortRun(primary).converted.model.get_submodule("layers.0.mlp.up_proj").weight, Primary)
    assert state._masters(primary) == 0
    real = short_run.apply
    monkeypatch.setattr(short_run, "apply", lambda *a, **k: replace(real(*a, **k), initial={}))
    assert 0.01 < state._masters(primary) < 0.1


def test_fp8_attention_is_as_far_from_fp64_as_fp8_is(session, stand_in):
    found, notes = attention.measure(subject(session, "te-current", "native"))
    values = measured((found, notes))
    assert all(values[f"fp8 attention used @ {name}"] == 1 for name in attention.TENSORS)
    assert all(20 < values[f"attention sqnr @ {name}"] < 35 for name in attention.TENSORS)
    assert values["repeat difference @ new modules"] == 0
    assert notes == ["TE selects FusedAttention, sub-backend 2"]
    assert stand_in.scale_updates == [False] * (attention.WARMUP + 1) * (1 + attention.REPEATS["cpu"])


def test_attention_that_fell_back_to_bf16_is_found(session, stand_in):
    stand_in.refreshes = False
    values = measured(attention.measure(subject(session, "te-current", "native")))
    assert {values[f"fp8 attention used @ {name}"] for name in attention.TENSORS} == {0.0}
    assert all(values[f"attention sqnr @ {name}"] > 45 for name in attention.TENSORS)


def test_attention_skips_with_the_packages_own_reason(session, stand_in):
    one = cell("te-current", "native")
    assert session.skip_reason("attention", one) is None
    stand_in.refreshes = False
    reason = "TE has no FP8 attention for te-current here: Disabling FusedAttention for bshd_bshd_bshd"
    assert session.skip_reason("attention", one) == reason
    assert (AttentionLogging._log_level, logging.getLogger("DotProductAttention").handlers) == (logging.WARNING, [])
    assert "Transformer Engine's" in session.skip_reason("attention", cell("ao-rowwise", "emulated"))
