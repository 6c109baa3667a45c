"""The checks for what needs a GPU, on the CPU: with sound arithmetic they are green, and each planted fault is found by its metric."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from fp8parity import checks, emulation
from fp8parity.cells import Cell
from fp8parity.checks import accumulation, attention, codes, large, state, trial
from fp8parity.emulation import EmulatedLinear
from fp8parity.recipes import RECIPES, passing, plain_checkpoint
from fp8parity.recipes.spec import GEMMS, Operand
from fp8parity.record import Measurement
from fp8parity.scaling import cut, delayed_scale, quantise
from torch import nn

ROOT = Path(__file__).parents[1]
QUANTISED = [r.name for r in RECIPES.values() if r.linear.quantised]


def subject(session, recipe: str, execution: str = "emulated") -> checks.Subject:
    return session._subject(Cell(recipe, execution, "nano"))


def measured(found: checks.Result) -> dict[str, float]:
    return {f"{m.metric} @ {m.where}": m.value for m in found[0]}


def failing(verdict) -> set[str]:
    return {place for place, _ in verdict.lines if " @ " in place}


@pytest.mark.parametrize(("check", "largest", "beyond"), [("state", "mini", "small"), ("layers", "small", "base")])
def test_a_model_without_bounds_is_left_out(check, largest, beyond, session):
    assert session.why_not(check, Cell("te-current", "emulated", largest)) is None
    why = session.why_not(check, Cell("te-current", "emulated", beyond))
    assert re.fullmatch(r"its bounds were measured on up to \d+M parameters; this model has \d+M", why)


def test_a_check_has_one_thread_and_gives_the_others_back(session, monkeypatch):
    seen = []

    def measure(subject):
        seen.append(torch.get_num_threads())
        return [Measurement(metric="m", where="w", value=1.0)], []

    monkeypatch.setattr(checks, "get", lambda name: measure)
    torch.set_num_threads(3)
    record = session.measure("gemm", Cell("te-current", "emulated"))
    assert (seen, record.provenance.threads, torch.get_num_threads()) == ([1], 1, 3)


# Accumulation


@pytest.mark.parametrize("recipe", QUANTISED)
@pytest.mark.parametrize("signed", [False, True])
def test_the_operands_are_exact_unless_the_check_says_no(recipe, signed):
    linear = RECIPES[recipe].linear
    exact = True
    for gemm in GEMMS:
        ops = accumulation.operands(gemm, 512, signed=signed)
        matrices = {"fprop_x": ops.x, "fprop_w": ops.w, "dgrad_dy": ops.dy, "dgrad_w": ops.w.T, "wgrad_dy": ops.dy.T, "wgrad_x": ops.x.T}
        for name, op in linear:
            if op.quantised:
                matrix = matrices[name].contiguous()
                amax = matrix.abs().amax().float()
                scale = delayed_scale(amax, amax, emulation.FORMATS[op.format]) if op.history else None
                noise = torch.zeros(cut(matrix, op).shape) if op.stochastic else None
                exact &= torch.equal(quantise(matrix, op, scale=scale, noise=noise).dequantise(), matrix.float())
    assert exact == (accumulation.inexact(RECIPES[recipe]) is None) == (recipe != "te-nvfp4")


def test_accumulation_leaves_out_what_it_cannot_see(session):
    assert "fprop_x (e2m1 1x16 nvfp4)" in session.why_not("accumulation", Cell("te-nvfp4", "emulated"))
    assert session.why_not("accumulation", Cell("te-block", "emulated")) is None
    assert session.why_not("gemm", Cell("te-nvfp4", "emulated")) is None


def short_accumulator(bits: int, chunk: int = 32):
    """Partial sums truncated toward zero to ``bits`` significant bits after each ``chunk`` products, as on Hopper."""
    mask = ~((1 << (24 - bits)) - 1)

    def gemm(a, b, out_dtype=torch.bfloat16):
        (x, sx), (w, sw) = a, b
        total = torch.zeros(x.shape[0], w.shape[0])
        for k in range(0, x.shape[1], chunk):
            total = total + x[:, k : k + chunk].float() @ w[:, k : k + chunk].float().T
            total = (total.view(torch.int32) & mask).view(torch.float32)
        return (total * sx * sw).to(out_dtype)

    return gemm


def test_accumulation_in_fp32_is_green_and_has_no_bias(session, eager):
    verdict = session.numerics("accumulation", Cell("te-current", "emulated"))
    assert verdict.green, verdict.message()
    found = measured(accumulation.measure(subject(session, "te-current")))
    assert {v for k, v in found.items() if "bias" in k} == {0.0}
    assert all(55.2 < v < 55.9 for k, v in found.items() if "sqnr" in k)
    assert len(found) == 2 * 3 * 2


def test_a_short_accumulator_is_a_bias_that_grows_with_k(session, eager, monkeypatch):
    monkeypatch.setattr(emulation, "gemm", short_accumulator(14))
    verdict = session.numerics("accumulation", Cell("te-current", "emulated"))
    assert verdict.status == "fail"
    assert {f"{gemm} bias @ K={k}" for gemm in GEMMS for k in (512, 2048)} <= failing(verdict)
    found = measured(accumulation.measure(subject(session, "te-current")))
    for gemm in GEMMS:
        assert -0.02 < found[f"{gemm} bias @ K=2048"] < 2 * found[f"{gemm} bias @ K=512"] < 0


# Large tensors


def test_equal_blocks_are_green(session, eager):
    for recipe in ("te-block", "te-nvfp4"):
        verdict = session.numerics("large", Cell(recipe, "emulated"))
        assert verdict.green, verdict.message()
    notes = large.measure(subject(session, "te-nvfp4"))[1]
    assert "dgrad: not measured, its operands are rounded stochastically" in notes
    assert "need a GPU" in session.why_not("large", Cell("te-block", "emulated"))


@pytest.mark.parametrize(("which", "metric"), [(0, "fprop difference"), (1, "dgrad difference")])
def test_one_wrong_element_in_a_late_block_is_counted(which, metric, session, eager, monkeypatch):
    real, size = emulation.gemm, large.SIZES["cpu"]
    calls = iter(range(1000))

    def wrong(a, b, *rest):
        y = real(a, b, *rest)
        if y.shape[0] == size.tokens * size.count and next(calls) == which:
            y[3 * size.tokens + 5, 7] += 1
        return y

    monkeypatch.setattr(emulation, "gemm", wrong)
    found = measured(large.measure(subject(session, "te-block")))
    others = {"fprop difference", "dgrad difference"} - {metric}
    assert found[f"{metric} @ repeated block"] == 1
    assert found[f"{others.pop()} @ repeated block"] == 0


def test_nan_and_zero_blocks_are_not_equal_blocks(session, eager, monkeypatch):
    assert large.differing(torch.full((6, 2), float("nan")), 3) == 8 + 4  # the first block differs from itself
    real = emulation.gemm
    monkeypatch.setattr(emulation, "gemm", lambda a, b, *rest: real(a, b, *rest) * 0)
    verdict = session.numerics("large", Cell("te-block", "emulated"))
    assert failing(verdict) == {f"{gemm} sqnr @ repeated block" for gemm in GEMMS}


# State


def test_differences_keep_nan():
    one, nan = torch.ones(3), torch.full((3,), float("nan"))
    assert trial.largest_difference([one, one], [one, 2 * one]) == 1
    assert trial.largest_difference([one, one, one], [one, nan, one]) != trial.largest_difference([one], [one])
    assert torch.tensor(trial.largest_difference([one, one, one], [one, nan, one])).isnan()
    assert torch.tensor(trial.lowest([1.0, float("nan"), 2.0])).isnan()


def test_a_race_is_found_by_repeats(session, eager, monkeypatch):
    assert state._race(subject(session, "te-delayed")) == 0
    assert state._race(subject(session, "te-nvfp4")) == 0
    real, calls = emulation.gemm, iter(range(10_000))

    def racy(a, b, *rest):
        y = real(a, b, *rest)
        if next(calls) % 101 == 100:
            y[0] *= 1.5
        return y

    monkeypatch.setattr(emulation, "gemm", racy)
    assert 1e-4 < state._race(subject(session, "te-current")) < 1


@contextmanager
def _balanced(depth: list[int]):
    depth[0] += 1
    try:
        yield
    finally:
        depth[0] -= 1


@contextmanager
def _leaky(depth: list[int]):
    depth[0] += 1
    yield
    depth[0] -= 1


@pytest.mark.parametrize(("region", "least", "most"), [(_balanced, 0, 0), (_leaky, 0.01, 1)])
def test_a_leak_after_a_raise_is_found(region, least, most, session, eager, monkeypatch):
    """A region that counts its depth, and quantises at depth 1 alone, as a context manager without ``finally`` leaves it."""
    depth = [0]
    real_convert, real_operand = checks.apply, EmulatedLinear.operand
    monkeypatch.setattr(trial, "apply", lambda *a, **k: replace(real_convert(*a, **k), context=lambda: region(depth)))

    def operand(self, name, x):
        forward = name.startswith("fprop")
        return (x, torch.ones(())) if forward and depth[0] != 1 else real_operand(self, name, x)

    monkeypatch.setattr(EmulatedLinear, "operand", operand)
    one = subject(session, "te-current")
    assert least <= state._after_a_raise(one, trial.Trial(one).run()) <= most


def test_further_arguments_reach_a_module_inside_the_region_only():
    class Module(nn.Module):
        def forward(self, x, flag=None):
            return x, flag

    module = Module()
    with passing([module], flag=True):
        assert module(1) == (1, True)
    assert module(1) == (1, None)
    with pytest.raises(RuntimeError), passing([module], flag=True):
        raise RuntimeError
    assert module(1) == (1, None)


# The TE adapter, on a stand-in for TE

OP = Operand("e4m3", scale="te-fp32")


def rounded(x: torch.Tensor) -> torch.Tensor:
    plain = x.detach().as_subclass(torch.Tensor)
    return quantise(plain.flatten(0, -2), OP).dequantise().view(x.shape).to(x.dtype)


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
    def autocast(self, enabled, recipe):
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
                code = rounded(weight) if is_first_microbatch is None or again else self.cache
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
    for adapter in ("te", "te_attention"):
        monkeypatch.delitem(sys.modules, f"fp8parity.recipes.{adapter}", raising=False)
    yield outer
    for adapter in ("te", "te_attention"):
        sys.modules.pop(f"fp8parity.recipes.{adapter}", None)


def test_te_caches_and_quantised_weights_follow_the_masters(session, stand_in):
    found = measured(state.measure(subject(session, "te-current", "native")))
    assert {v for k, v in found.items() if "difference" in k} == {0.0}
    assert len(found) == 9
    plain = found["accumulated sqnr @ tiny steps"]
    assert 20 < plain < 32
    assert abs(found["cached weight sqnr @ tiny steps"] - plain) < 0.5
    assert abs(found["quantised weights sqnr @ tiny steps"] - plain) < 0.5


def test_older_te_names_serve_as_well(session, stand_in, monkeypatch):
    """Before TE 2.9 the region was fp8_autocast(fp8_recipe=...), quantised weights fp8_model_init, and the state manager's module fp8."""
    now = measured(state.measure(subject(session, "te-current", "native")))
    monkeypatch.delitem(sys.modules, "fp8parity.recipes.te")
    pytorch, manager = sys.modules["transformer_engine.pytorch"], sys.modules["transformer_engine.pytorch.quantization"]
    entered = []

    def fp8_autocast(enabled, fp8_recipe):
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
    sound = trial.Trial(one).followed(cache=True)
    stand_in.refreshes = False
    assert trial.Trial(one).followed(cache=True) < sound - 1.5
    assert abs(trial.Trial(one).followed() - sound) < 0.5


def test_quantised_weights_that_updates_do_not_reach_are_found(session, stand_in, monkeypatch):
    one = subject(session, "te-current", "native")
    primary = replace(one, recipe=replace(one.recipe, options=(("quantised_weights", True),)))
    sound = trial.Trial(primary).followed()
    real = trial.Masters.step

    def lost(self, clip):
        before = [p.detach().clone() for p in self.params]
        norm = real(self, clip)
        for p, old in zip(self.params, before, strict=True):
            if isinstance(p, Primary):
                p.data = old
        return norm

    monkeypatch.setattr(trial.Masters, "step", lost)
    assert trial.Trial(primary).followed() < sound - 1.5


def test_masters_that_start_from_dequantised_weights_are_found(session, stand_in, monkeypatch):
    one = subject(session, "te-current", "native")
    primary = replace(one, recipe=replace(one.recipe, options=(("quantised_weights", True),)))
    assert isinstance(trial.Trial(primary).applied.model.layers[0].mlp.up_proj.weight, Primary)
    assert state._masters(primary) == 0
    real = trial.apply
    monkeypatch.setattr(trial, "apply", lambda *a, **k: replace(real(*a, **k), initial={}))
    assert 0.01 < state._masters(primary) < 0.1


def test_fp8_attention_is_as_far_from_fp64_as_fp8_is(session, stand_in):
    found, notes = attention.measure(subject(session, "te-current", "native"))
    values = measured((found, notes))
    assert all(values[f"fp8 attention used @ {name}"] == 1 for name in attention.TENSORS)
    assert all(20 < values[f"attention sqnr @ {name}"] < 35 for name in attention.TENSORS)
    assert notes == ["TE selects FusedAttention, sub-backend 2"]
    assert stand_in.scale_updates == [False] * (attention.WARMUP + 1)


def test_attention_that_fell_back_to_bf16_is_found(session, stand_in):
    stand_in.refreshes = False
    values = measured(attention.measure(subject(session, "te-current", "native")))
    assert {values[f"fp8 attention used @ {name}"] for name in attention.TENSORS} == {0.0}
    assert all(values[f"attention sqnr @ {name}"] > 45 for name in attention.TENSORS)


def test_attention_skips_with_the_packages_own_reason(session, stand_in):
    one = Cell("te-current", "native")
    assert session.why_not("attention", one) is None
    stand_in.refreshes = False
    reason = "TE has no FP8 attention for te-current here: Disabling FusedAttention for bshd_bshd_bshd"
    assert session.why_not("attention", one) == reason
    assert AttentionLogging._log_level == logging.WARNING
    assert logging.getLogger("DotProductAttention").handlers == []
    assert "Transformer Engine's" in session.why_not("attention", Cell("ao-rowwise", "emulated"))


# Second opinions and skips


def test_the_second_opinion_on_nvfp4_is_tes_reference_on_a_gpu(session, monkeypatch):
    on_cpu = subject(session, "te-nvfp4")
    on_gpu = replace(on_cpu, device=torch.device("cuda"))
    assert codes.second_opinion(on_gpu) is None  # TE is not installed here
    monkeypatch.setattr(codes, "installed", lambda name: True)
    assert codes.second_opinion(on_cpu) is None
    assert codes.second_opinion(on_gpu) == f"the vendor's reference {on_gpu.recipe.reference}"
    assert codes.second_opinion(replace(on_gpu, execution="native")) == f"the vendor's reference {on_gpu.recipe.reference}"
    assert codes.second_opinion(replace(on_gpu, recipe=RECIPES["te-block"])) is None
    assert codes.second_opinion(replace(on_cpu, recipe=RECIPES["ao-rowwise"])) == "the vendor torchao"


def test_a_check_that_cannot_measure_is_a_skip_with_its_reason(tmp_path):
    only = "(accumulation and te-nvfp4-emulated) or (large and bf16)"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rs", "suites/numerics/test_device.py", "-k", only]
    done = subprocess.run(
        [*command, "--parity-records", str(tmp_path)], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "fixtures"), "COLUMNS": "250"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout  # nothing ran
    assert "fprop_x (e2m1 1x16 nvfp4) does not hold the operands exactly" in done.stdout
    assert "tensors over 2**31 bytes need a GPU" in done.stdout
    assert "2 skipped" in done.stdout
    assert not list(tmp_path.glob("*.json"))
