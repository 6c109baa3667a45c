"""Compiled blocks: how many versions Dynamo makes, and which of them a block runs with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity import recipes
from fp8parity.records.cell import Execution
from fp8parity.training import compilation
from fp8parity.training.optimizer import CompiledUpdate, MasterWeightOptimizer, adamw
from fp8parity.workload import models
from fp8parity.workload.config import ModelConfig
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters


def versions(count: int, monkeypatch) -> int:
    """How many graphs Dynamo traces for a block of each of ``count`` widths, from its own settings on."""
    real = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: real(self, backend="eager", **options))
    torch._dynamo.reset()
    before = counters["stats"]["unique_graphs"]
    with torch._dynamo.config.patch(
        recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=False
    ):
        for hidden in range(1, count + 1):
            model = models.build(ModelConfig("x", dim=32, layers=1, heads=2, kv_heads=1, hidden=32 * hidden), 0)
            compilation.compile_blocks(model)
            model(torch.zeros(1, 8, dtype=torch.int64))
    return counters["stats"]["unique_graphs"] - before


@pytest.mark.slow
def test_a_long_session_stays_compiled(monkeypatch):
    """Dynamo by itself stops at 8 versions of a function, and goes on eagerly."""
    assert versions(12, monkeypatch) == 12


def test_too_many_versions_are_an_error(monkeypatch):
    monkeypatch.setattr(compilation, "VERSIONS", 3)
    with pytest.raises(FailOnRecompileLimitHit):
        versions(5, monkeypatch)


class Attention(nn.Module):
    """A part of a block that holds a linear of either model."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Chain(nn.Module):
    """A block. ``compile`` needs no Inductor."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.norm, self.attention = nn.Linear(4, 4), Attention(linear)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.attention(self.norm(x))

    def compile(self, **options: Any) -> None:
        super().compile(backend="eager", **options)


class Breaks(nn.Module):
    """A linear that Dynamo cannot compile, as a vendor's."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.relu()


def test_a_model_does_not_run_the_code_of_another():
    """Without classes of their own, the blocks of the first model would run with the code of the second, in parts."""

    def blocks(linear: nn.Module) -> nn.ModuleDict:
        model = nn.ModuleDict({"layers": nn.ModuleList(Chain(linear) for _ in range(2))})
        compilation.compile_blocks(model)
        return model

    def parts(model: nn.ModuleDict) -> int:
        """The number of compiled parts that a pass through both blocks starts."""
        with torch.profiler.profile() as profile:
            for block in model["layers"].children():
                block(torch.ones(2, 4))
        return sum("Torch-Compiled Region" in e.name for e in profile.events())

    torch._dynamo.reset()
    whole, broken = blocks(nn.ReLU()), blocks(Breaks())
    parts(whole), parts(broken)
    assert parts(whole) == 2 < parts(broken)
    assert len({type(b) for model in (whole, broken) for b in model["layers"].children()}) == 2


class Numbered(nn.Module):
    """A linear that Dynamo compiles anew for each module, because its code depends on what only this module holds."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.compiling = number, True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.compiling = torch.compiler.is_compiling()
        return x * self.number


@pytest.mark.parametrize(("left_out", "graphs"), [(False, 4), (True, 2)])
def test_modules_that_are_left_out_are_not_compiled(left_out, graphs):
    """The code around it is compiled once: before it and after it."""
    torch._dynamo.reset()
    counters.clear()
    model = nn.ModuleDict({"layers": nn.ModuleList(Chain(Numbered(number)) for number in range(4))})
    linears = [m for m in model.modules() if isinstance(m, Numbered)]
    if left_out:
        compilation.leave_out(linears)
    compilation.compile_blocks(model)
    x = torch.ones(2, 4)
    for number, block in enumerate(model["layers"].children()):
        assert torch.equal(block(x), x + block.get_submodule("norm")(x) * number)
    assert counters["stats"]["unique_graphs"] == graphs
    assert [m.compiling for m in linears] == [not left_out] * 4


STEPS = 4


def taken(nano, optimizer_type, clip=1.0, accumulation=1):
    """The optimizer and the norms [steps, 1 + parameters] of a few steps with made-up gradients, the same for any optimizer."""
    schedule = replace(nano.schedule, lr=1e-2, accumulation=accumulation)
    converted = recipes.apply(
        models.build(nano.model, 0), recipes.get("bf16"), Execution.NATIVE, tokens=schedule.tokens
    )
    optimizer = optimizer_type(converted, schedule)
    generator = torch.Generator().manual_seed(0)
    reports = []
    for step in range(STEPS):
        optimizer.set_lr(1e-2 / (1 + step))
        optimizer.zero()
        for _ in range(accumulation):
            for p in optimizer.params:
                p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
            optimizer.gather(1 / accumulation)
        reports.append(optimizer.step(clip))
    return optimizer, torch.stack(reports)


def furthest(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference of an element."""
    return max(float((x - y).detach().abs().max()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("changes", [{"clip": 0.1}, {"clip": 1e9}, {"accumulation": 3}], ids=str)
def test_weights_are_those_of_torch(nano, changes):
    (plain, expected), (ours, found) = (taken(nano, of, **changes) for of in (MasterWeightOptimizer, CompiledUpdate))
    assert torch.allclose(found, expected, rtol=1e-6)
    start = [m.float() for m in models.build(nano.model, 0).parameters()]
    assert 0.01 < furthest(plain.masters, start) < 0.05
    assert furthest(plain.masters, ours.masters) < 1e-6
    assert all(torch.equal(p, m.to(p.dtype)) for p, m in zip(ours.params, ours.masters, strict=True))
    assert list(ours.gradients) == list(plain.gradients)


@pytest.mark.slow
def test_the_compiled_kernel_is_the_function():
    generator = torch.Generator().manual_seed(0)
    shapes = [torch.randn(4096, generator=generator) for _ in range(4)]
    factor, lr, correction, root = [torch.tensor(x) for x in (0.5, 1e-2, 0.1, 0.3)]
    found = []
    for update in (adamw, torch.compile(adamw, dynamic=False)):
        master, average, square, gradient = (t.clone() for t in shapes)
        square.abs_()
        weight = master.bfloat16()
        tensors = master, average, square, weight, gradient.bfloat16()
        update(*tensors, factor, lr, correction, root, decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8)
        found.append((master, average, square, weight.float()))
    for a, b, start in zip(*found, (*shapes[:3], shapes[0].bfloat16().float()), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-7) and not torch.equal(a, start)
