"""TE's options in the check ``twins``, on a stand-in for TE: sound ones pass, and each planted fault is red at its option."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity import recipes
from fp8parity.checks import twins
from narrowed import some
from sessions import cell, verdict
from te_stand_in import StandIn, recomputed, rounded
from te_stand_in import stand_in as stand_in
from torch import Tensor, nn

PASSING, STATIC = ("FP32 main gradients", "recomputed activations"), dict[int, tuple[Tensor, Tensor]]()
"""A parameter is kept next to its gradient, so that no later one gets its id."""


class Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, linear: Linear) -> Tensor:
        code = rounded(x)
        ctx.save_for_backward(x if linear.save_original_input else code, weight)
        ctx.linear = linear
        return code @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (x, weight), linear = ctx.saved_tensors, ctx.linear
        x = rounded(x * linear.newer) if linear.save_original_input else x
        linear.pending.append((dy.flatten(0, -2), x.flatten(0, -2)))
        if linear.delay_wgrad_compute and not linear.eager:
            return dy @ weight, None, None
        return dy @ weight, linear.wgrad(), None


class Linear(nn.Linear):
    """TE's linear with its three options, and switches for faults."""

    newer, eager, overwrites, drops = 1.0, False, False, False

    def __init__(self, k: int, n: int, bias: bool, params_dtype: Any, device: Any, save_original_input: bool = False,
                 fuse_wgrad_accumulation: bool = False, delay_wgrad_compute: bool = False) -> None:  # fmt: skip
        super().__init__(k, n, bias=bias, dtype=params_dtype, device=device)
        self.save_original_input, self.delay_wgrad_compute = save_original_input, delay_wgrad_compute
        self.fuses, self.pending = fuse_wgrad_accumulation, list[Any]()

    def wgrad(self) -> Tensor | None:
        dy, x = self.pending.pop()
        if not self.fuses:
            return dy.T @ x
        total: Tensor = vars(self.weight)["main_grad"]
        if self.overwrites:
            total.zero_()
        total += dy.T.float() @ x.float()
        return None

    def backward_dw(self) -> None:
        if self.pending and not self.drops:
            self.weight.grad = self.wgrad()

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        if is_first_microbatch is not None:
            x = x + torch.zeros(())  # a cache is another operation
        return Gemm.apply(x, self.weight, self)


def unlinked() -> Any:
    """Return what a product needs of a linear without options."""
    one = SimpleNamespace(save_original_input=False, delay_wgrad_compute=False, pending=[])
    one.wgrad = lambda: (lambda dy, x: dy.T @ x)(*one.pending.pop())
    return one


class GroupedLinear(nn.Module):
    """TE's module, and its fusible operation, which takes ``counts`` as a tensor."""

    inputs = 1

    def __init__(
        self, count: int, k: int, n: int, bias: bool, device: Any, params_dtype: Any = None, dtype: Any = None
    ):
        super().__init__()
        self.num_gemms, self.in_features, self.out_features = count, k, n
        for i in range(count):
            weight = nn.Parameter(torch.empty(n, k, device=device, dtype=params_dtype or dtype))
            self.register_parameter(f"weight{i}", weight)

    def forward(self, x: Tensor, counts: Any, is_first_microbatch: bool | None = None) -> Tensor:
        if is_first_microbatch is not None:
            x = x + torch.zeros(())  # a cache is another operation
        parts = zip(x.split([int(n) for n in counts]), self.parameters(), strict=True)
        return torch.cat([Gemm.apply(rows, weight, unlinked()) for rows, weight in parts])


class ScaledSwiGLU(nn.Module):
    inputs = 1

    def forward(self, x: Tensor, scales: Tensor) -> Tensor:
        a, b = x.float().chunk(2, -1)
        return (F.silu(a) * b * scales[:, None]).to(x.dtype)


class Sequential(nn.Sequential):
    """Operations one after another, each with its further inputs."""

    def forward(self, x: Tensor, *further: Tensor) -> Tensor:
        left = iter(further)
        for op in self:
            x = op(x, *(next(left) for _ in range(getattr(op, "inputs", 0))))
        return x


class SwiGLU(nn.Module):
    swapped = False

    def __init__(self, cache_quantized_input: bool = False) -> None:
        super().__init__()
        self.rounds = cache_quantized_input

    def forward(self, x: Tensor) -> Tensor:
        a, b = reversed(x.chunk(2, -1)) if self.swapped else x.chunk(2, -1)
        y = F.silu(a) * b
        return y + (rounded(y) - y).detach() * 1e-3 if self.rounds else y


def ops_linear(k: int, n: int, bias: bool, dtype: Any, device: Any) -> Linear:
    return Linear(k, n, bias, dtype, device)


class LayerNormMLP(nn.Module):
    def __init__(self, dim: int, hidden: int, eps: float, params_dtype: Any, device: Any, **_: Any) -> None:
        super().__init__()
        how = {"dtype": params_dtype, "device": device}
        self.layer_norm_weight = nn.Parameter(torch.ones(dim, **how))
        self.fc1_weight, self.fc2_weight = (
            nn.Parameter(torch.empty(*s, **how)) for s in ((2 * hidden, dim), (dim, hidden))
        )
        self.eps, self.act = eps, SwiGLU()

    def forward(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, (x.shape[-1],), self.layer_norm_weight, self.eps)
        one = unlinked()
        return Gemm.apply(self.act(Gemm.apply(x, self.fc1_weight, one)), self.fc2_weight, one)


def graphed(modules: tuple[nn.Module, ...], samples: Any, *, copies: bool = True, **_: Any) -> None:
    """Each weight's gradient is handed out in the graph's own buffer if it is not copied (TE issue 2937)."""

    def static(p: Tensor) -> None:
        grad = some(p.grad)
        p.grad = grad.clone() if copies else STATIC.setdefault(id(p), (p, torch.empty_like(grad)))[1].copy_(grad)

    for m in modules:
        some(m.get_parameter("weight")).register_post_accumulate_grad_hook(static)


def offloading(bits: torch.dtype, **_: Any) -> tuple[Any, Callable[[Tensor], Tensor]]:
    pack = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (t.dtype, t.to(bits) if t.is_floating_point() else t), lambda held: held[1].to(held[0])
    )
    return pack, lambda x: x


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float, mean: bool, *, all_: bool = False) -> Tensor:
    total = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
    return total / (targets.numel() if all_ else (targets != -100).sum())


PACKAGE: dict[str, Any] = {
    "Linear": Linear, "LayerNormMLP": LayerNormMLP, "make_graphed_callables": graphed, "parallel_cross_entropy": cross_entropy,
    "get_cpu_offload_context": partial(offloading, torch.float64), "checkpoint": recomputed,
    "ops": SimpleNamespace(
        Sequential=Sequential, Linear=ops_linear, SwiGLU=SwiGLU, GroupedLinear=GroupedLinear, ScaledSwiGLU=ScaledSwiGLU
    ),
    "GroupedLinear": GroupedLinear,
}  # fmt: skip
Fault = tuple[Any, str, Any]
GROUPED = "te.ops grouped MLP"
FAULTS: dict[str, tuple[str, list[Fault], set[str]]] = {
    "none": ("nano", [], set()),
    "values": (
        "nano",
        [
            (Linear, "newer", 1.03), (Linear, "overwrites", True), (Linear, "drops", True), (SwiGLU, "swapped", True),
            (PACKAGE, "make_graphed_callables", partial(graphed, copies=False)),
            (PACKAGE, "get_cpu_offload_context", partial(offloading, torch.float8_e4m3fn)),
            (PACKAGE, "parallel_cross_entropy", partial(cross_entropy, all_=True)),
        ],
        {
            "save_original_input", "fuse_wgrad_accumulation", "delay_wgrad_compute", "te.ops MLP", "te.ops MLP, FP8 activation input",
            "fused norm and MLP", "graphed callables", "graphed callables, cached weights", "offloaded activations", "fused cross entropy",
        },
    ),
    "options that do nothing": (
        "nano",
        [(Linear, "eager", True), (PACKAGE, "get_cpu_offload_context", lambda **_: (nullcontext(), lambda x: x))],
        {"delay_wgrad_compute", "offloaded activations"},
    ),
    "none of experts": ("nano-moe", [], set()),
}  # fmt: skip
"""The model, what is changed where, and the options that must be red: all that is changed, and no other."""


@pytest.fixture
def package(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The stand-in with what the options need."""
    monkeypatch.setattr(twins, "SWITCHES", twins.SWITCHES[:2])
    return sys.modules["transformer_engine.pytorch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_fault_of_an_option_is_red_there(name, package, session, monkeypatch, eager):
    model, faults, wrong = FAULTS[name]
    STATIC.clear()
    for owner, attribute, value in faults:
        (monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr)(owner, attribute, value)
    for key, held in PACKAGE.items():
        monkeypatch.setattr(package, key, held, raising=False)
    monkeypatch.setattr("fp8parity.judging.numerics.SHOWN", 100)
    record = session.measure("twins", cell("te-current", "native", model))
    assert {m.where for m in record.values} >= ({*PASSING} if model == "nano" else {GROUPED})
    skipped = [n for n in record.notes if "skipped" in n]
    if model == "nano":
        assert skipped == [f"skipped {GROUPED}: the model has no experts"]
    else:
        assert sum("experts have a grouped MLP" in note for note in skipped) == 3
    found = verdict(record)
    red = {place.partition(" @ ")[2] for place, _ in found.lines if " @ " in place}
    assert red == wrong and found.status == ("fail" if wrong else "pass"), found.message()


@pytest.mark.slow
def test_option_that_the_package_lacks_is_skipped_by_name(package, session, eager):
    """The plain stand-in has none of the options."""
    record = session.measure("twins", cell("te-current", "native", "nano"))
    assert {m.where for m in record.values} == {*PASSING, "recomputed, not reentrant"}
    lacking = {n.partition(" has no ")[2] for n in record.notes if n.startswith("skipped")}
    assert {"save_original_input", "delay_wgrad_compute", "ops", "parallel_cross_entropy"} <= lacking


@pytest.mark.parametrize(("recipe", "runs"), [("te-current", True), ("te-block", False)])
def test_grouped_mlp_is_skipped_where_its_gemms_raise(recipe, runs, package, monkeypatch):
    monkeypatch.setattr(package, "ops", PACKAGE["ops"], raising=False)
    experts = nn.Sequential(nn.Identity())
    monkeypatch.setattr(experts[0], "num_gemms", 4, raising=False)
    te_switches = importlib.import_module("fp8parity.recipes.adapters.te_switches")
    why = te_switches._not_grouped(SimpleNamespace(model=experts, recipe=recipes.get(recipe)))
    assert (why is None) is runs and (runs or "split accumulator" in why)
