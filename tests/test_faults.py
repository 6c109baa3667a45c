"""Planted faults: each must turn the right check red. The table is what the suite is worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fp8parity.numerics import emulation, scaling
from fp8parity.numerics.emulation import DelayedScale, EmulatedLinear
from fp8parity.numerics.scaling import SCALE_RULES, ScaleRule
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import RECIPES
from fp8parity.recipes.conversion import plain_checkpoint
from sessions import cell

Plant = Callable[[pytest.MonkeyPatch], None]


def rule(name: str, change: Callable[[ScaleRule], ScaleRule]) -> Plant:
    return lambda patch: patch.setitem(SCALE_RULES, name, change(SCALE_RULES[name]))


def operand(recipe: str, **operands: Operand) -> Plant:
    r = RECIPES[recipe]
    return lambda patch: patch.setitem(RECIPES, recipe, replace(r, linear=replace(r.linear, **operands)))


def method(cls: type, name: str, change: Callable[[Callable[..., object]], Callable[..., object]]) -> Plant:
    return lambda patch: patch.setattr(cls, name, change(getattr(cls, name)))


def fall_back(real):
    """Silent BF16: the operand is handed on as it came."""
    return lambda self, name, x: (x, torch.ones(()))


def never_refresh(real):
    def weights(self, w):
        if self.cached_weight[0] is None:
            fprop, dgrad = real(self, w)
            self.cached_weight = [fprop, dgrad]
        return self.cached_weight[0], self.cached_weight[1]

    return weights


def drop_slice(real):
    def gemm(a, b, *rest):
        y = real(a, b, *rest)
        if y.shape == (512, 384):  # the weight gradient of the families' linear
            y[:16] = 0
        return y

    return gemm


def wrong_axis(real):
    """Row scales taken along the columns: what is left when a transpose does not flip the axis."""

    def prepare(x, op, *a, **k):
        if op.tile != (1, 0):
            return real(x, op, *a, **k)
        data, outer, amax = real(x.T.contiguous(), op, *a, **k)
        return data.T.contiguous(), outer, amax

    return prepare


def truncated(real):
    """Partial sums cut to 10 bits, as a short accumulator does, much exaggerated."""

    def gemm(a, b, *rest):
        y = real(a, b, *rest)
        return (y.float().view(torch.int32) & ~0x1FFFF).view(torch.float32).to(y.dtype)

    return gemm


_ROUND = scaling.round_to_grid
SIZELESS = ("amax never recorded", "recompute outside of the recipe's contexts", "history lost in the checkpoint")
"""Faults that rules find in a model of any size, and so in the smallest."""
E5M2_BLOCK = Operand("e5m2", (1, 128), "te-pow2")
FAULTS = {
    "E5M2 for E4M3 in the gradient": (operand("te-block", dgrad_dy=E5M2_BLOCK, wgrad_dy=E5M2_BLOCK), "te-block", "gemm"),
    "scale twice too large": (rule("te-fp32", lambda f: lambda a, fmt: 2 * f(a, fmt)), "te-current", "gemm"),
    "scale twice too large, seen in scales": (rule("te-fp32", lambda f: lambda a, fmt: 2 * f(a, fmt)), "te-current", "codes"),
    "scale 256 times too small": (rule("te-pow2", lambda f: lambda a, fmt: f(a, fmt) / 4096), "te-block", "gemm"),
    "scale one ulp off": (rule("te-fp32", lambda f: lambda a, fmt: f(a, fmt) * (1 + 2**-23)), "te-current", "codes"),
    "floor for round-up": (rule("e8m0-rceil", lambda f: SCALE_RULES["e8m0-floor"]), "te-mxfp8", "gemm"),
    "floor for round-up, seen in scales": (rule("e8m0-rceil", lambda f: SCALE_RULES["e8m0-floor"]), "te-mxfp8", "codes"),
    "floor for round-up against torchao": (rule("e8m0-rceil", lambda f: SCALE_RULES["e8m0-floor"]), "ao-mxfp8", "codes"),
    "silent BF16": (method(EmulatedLinear, "operand", fall_back), "te-current", "gemm"),
    "silent BF16 in the model": (method(EmulatedLinear, "operand", fall_back), "te-current", "gradients"),
    "weight cache never refreshed": (method(EmulatedLinear, "weight_operands", never_refresh), "te-current", "state"),
    "amax never recorded": (method(DelayedScale, "update", lambda f: lambda self, amax: None), "te-delayed", "state"),
    "amax never recorded, one GEMM": (method(DelayedScale, "update", lambda f: lambda self, amax: None), "te-delayed", "gemm"),
    "a slice of wgrad lost": (lambda p: p.setattr(emulation, "gemm", drop_slice(emulation.gemm)), "te-current", "gemm"),
    "short accumulator": (lambda p: p.setattr(emulation, "gemm", truncated(emulation.gemm)), "bf16-like", "gemm"),
    "row scales on the wrong axis": (lambda p: p.setattr(emulation, "prepare", wrong_axis(emulation.prepare)), "core-rowwise", "gemm"),
    "recompute outside of the recipe's contexts": (
        lambda p: p.setattr("fp8parity.recipes.adapters.emulated._checkpoint", plain_checkpoint),
        "te-delayed", "state",
    ),
    "history lost in the checkpoint": (
        method(DelayedScale, "register_buffer", lambda f: lambda self, n, t: f(self, n, t, persistent=False)), "te-delayed", "state",
    ),
    "stochastic rounding returned zeros": (
        lambda p: p.setattr(scaling, "round_to_grid", lambda x, fmt, noise=None, **k: x * 0 if noise is not None else _ROUND(x, fmt, **k)),
        "te-nvfp4", "gemm",
    ),
    "the package changed a default": (
        lambda p: p.setattr("fp8parity.recipes.adapters.torchao.default_spec", lambda r: RECIPES["ao-tensorwise"].linear),
        "ao-rowwise", "defaults",
    ),
}  # fmt: skip


@pytest.fixture
def extra_recipes(monkeypatch):
    """Recipes that only the faults need: rowwise on the core, and one whose wgrad stays in BF16 on the core."""
    for name, of in (("core-rowwise", "ao-rowwise"), ("bf16-like", "ao-rowwise-gw-hp")):
        monkeypatch.setitem(RECIPES, name, replace(RECIPES[of], vendor_emulation=False, adapter="", native=None))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found(fault, session, monkeypatch, eager, extra_recipes):
    plant, recipe, check = FAULTS[fault]
    plant(monkeypatch)
    verdict = session.numerics(check, cell(recipe, "emulated", "nano" if fault in SIZELESS else "tiny"))
    assert verdict.status == "fail", verdict.message()


def test_without_a_fault_the_state_of_a_small_model_is_green(session, eager):
    """What the faults of SIZELESS are planted in."""
    verdict = session.numerics("state", cell("te-delayed", "emulated", "nano"))
    assert verdict.green, verdict.message()


@pytest.mark.parametrize("recipe", ["core-rowwise", "bf16-like"])
def test_without_a_fault_the_extra_recipes_are_green(recipe, session, monkeypatch, eager, extra_recipes):
    verdict = session.numerics("gemm", cell(recipe, "emulated"))
    assert verdict.green, verdict.message()


def test_an_unquantised_run_is_red_in_convergence_too(session, monkeypatch, eager, trajectory):
    """The silent fall-back trains exactly as BF16 does: equal losses, and the verdict says so."""
    monkeypatch.setattr(EmulatedLinear, "operand", fall_back(None))
    quantised, control = (session.trajectory(cell(r, e, "nano"), 0) for r, e in (("te-current", "emulated"), ("bf16", "native")))
    assert quantised.loss == control.loss


def test_nan_names_its_step_and_parameter(session, monkeypatch, eager):
    calls = iter(range(1000))
    real = emulation.gemm

    def poisoned(a, b, *rest):
        y = real(a, b, *rest)
        return y * float("nan") if next(calls) == 60 else y

    monkeypatch.setattr(emulation, "gemm", poisoned)
    found = session.trajectory(cell("te-current", "emulated", "nano"), 0)
    assert found.non_finite is not None
    assert found.non_finite.step == 60 // 21  # 7 linears x 3 GEMMs a step
    assert found.non_finite.where.startswith("gradient of ")
    assert len(found.loss) == found.non_finite.step + 1
