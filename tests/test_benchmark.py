"""Timing of training steps: blocks in turns, a machine that slows down, real steps, and model FLOPs. No GPU: clocks are made up."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.recipes import ConvertedModel, Recipe
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.schema import Throughput
from fp8parity.training import benchmark, turns
from fp8parity.training.compiled_update import CompiledUpdate
from fp8parity.training.step import MasterWeightOptimizer
from fp8parity.workload import corpus
from fp8parity.workload.models import ModelConfig
from fp8parity.workload.presets import Preset
from fp8parity.workload.schedule import Schedule
from timings import ROW
from torch import nn

NANO = Preset(
    ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128),
    Schedule(steps=12, rows=2, length=64, lr=1e-3),
)


class Machine:
    """A machine under a made-up clock: a recipe's step takes its seconds, times a slow-down that grows with the clock."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now, self.drift = 0.0, drift
        self.order: list[str] = []

    def side(self, name: str, seconds: float) -> SimpleNamespace:
        def run(number: int) -> float:
            self.order.append(name)
            took = number * seconds * (1 + self.drift * self.now)
            self.now += took
            return took

        return SimpleNamespace(run=run, memory=1)


def timed(monkeypatch, machine: Machine) -> Throughput:
    """``benchmark.measure`` on a machine whose recipe takes 1 / 1.25 of BF16's time."""
    seconds = {"bf16": 0.025, "te-current": 0.02}
    monkeypatch.setattr(benchmark, "_side", lambda config, recipe, *_: machine.side(recipe.name, seconds[recipe.name]))
    recipe = recipes.get("te-current")
    return benchmark.measure(
        NANO.model,
        recipe,
        Execution.EMULATED,
        NANO.schedule,
        corpus.load("topics"),
        device=torch.device("cpu"),
        session="s",
    )


def test_blocks_alternate(monkeypatch):
    machine = Machine()
    run = timed(monkeypatch, machine)
    assert machine.order[-34:] == ["bf16", "te-current"] * 17
    assert run.steps_a_block == 10  # 0.25 s of BF16
    assert run.bf16_seconds == pytest.approx([0.25] * 17) and run.recipe_seconds == pytest.approx([0.2] * 17)


def test_a_machine_that_slows_down_does_not_bias_the_ratio(monkeypatch):
    """The clock slows a block by a fifth and more over the session. A B A B is off by a block's worth; A A B B would be red."""
    machine = Machine(drift=0.05)
    run = timed(monkeypatch, machine)
    assert run.bf16_seconds[-1] / run.bf16_seconds[0] > 1.2
    found = speed.measured(run)
    assert abs(found.ratio / 1.25 - 1) < 0.015
    apart = Machine(drift=0.05)
    plain, ours = apart.side("bf16", 0.025), apart.side("te-current", 0.02)
    first, second = [plain.run(10) for _ in range(11)], [ours.run(10) for _ in range(11)]
    assert np.median(np.divide(first, second)) / 1.25 - 1 < -0.08


@pytest.mark.slow
def test_the_bench_runs_real_steps_on_a_cpu_and_nothing_gates_them(eager, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.01)
    run = benchmark.measure(
        NANO.model, recipes.get("te-current"), Execution.EMULATED, NANO.schedule, corpus.load("topics"),
        device=torch.device("cpu"), mode=Mode.EAGER, pairs=8,
    )  # fmt: skip
    assert len(run.bf16_seconds) == len(run.recipe_seconds) == 8
    assert all(0 < s < 60 for s in (*run.bf16_seconds, *run.recipe_seconds))
    assert speed.measured(run.model_copy(update={"peak_flops": None})).ratio < 1  # the emulation is slower than BF16
    assert (run.watch, run.mode, run.tokens) == (None, "eager", 128)
    assert speed.judge(run.model_copy(update={"bf16_memory": 1}), None, ROW).status == "inconclusive"


def test_a_step_that_is_not_finite_has_no_time():
    side = turns.Side(lambda number: torch.tensor([1.0, math.nan]), torch.device("cpu"))
    with pytest.raises(ValueError, match="a timed step gave a value that is not finite"):
        side.run(2)


def test_model_flops_by_hand():
    c = NANO.model  # dim 64, 1 layer, 2 heads and 1 kv head of 32, hidden 128
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + c.vocab * 64
    vectors = c.parameters - matrices - (0 if c.tied else c.vocab * 64)
    assert 0 < vectors < 400  # norms: counted as parameters, no products
    assert benchmark.flops_per_token(c, 32) == 6 * (matrices + vectors) + 6 * 64 * 32
    assert benchmark.flops_per_token(c, 64) - benchmark.flops_per_token(c, 32) == 6 * 64 * 32


@pytest.mark.parametrize(
    ("execution", "mode"), [(Execution.FUSED, Mode.GRAPHED), (Execution.NATIVE, Mode.COMPILED_GRAPHED)]
)
def test_a_fused_layer_is_not_compiled(monkeypatch, execution, mode):
    """Tracing it takes a minute and finds only graph breaks. BF16 beside it is compiled."""
    asked: list[Mode] = []

    def make(
        converted: object, optimizer: object, schedule: object, of: Mode, pool: object
    ) -> Callable[..., torch.Tensor]:
        asked.append(of)
        return lambda *_: torch.zeros(1)

    monkeypatch.setattr(benchmark, "make_step", make)
    terms = (NANO.schedule, corpus.load("topics"), torch.device("cpu"), Mode.COMPILED_GRAPHED, None)
    benchmark._side(NANO.model, recipes.get("bf16"), execution, *terms)
    assert asked == [mode]


@pytest.mark.parametrize(
    ("recipe", "mode", "left_out"),
    [
        ("te-delayed", Mode.COMPILED_GRAPHED, 7),
        ("te-delayed", Mode.GRAPHED, 0),
        ("te-current", Mode.COMPILED_GRAPHED, 0),
    ],
)
def test_linears_with_delayed_scales_are_not_traced(monkeypatch, recipe, mode, left_out):
    """The linears of the emulation stand for TE's."""
    found: list[nn.Module] = []
    real = recipes.apply
    monkeypatch.setattr(benchmark, "make_step", lambda *_, **__: lambda *_: torch.zeros(1))
    monkeypatch.setattr(benchmark, "leave_out", found.extend)

    def applied(model: nn.Module, of: Recipe, execution: Execution, *, tokens: int) -> ConvertedModel:
        return replace(real(model, of, Execution.EMULATED, tokens=tokens), execution=execution)

    monkeypatch.setattr(recipes, "apply", applied)
    terms = (NANO.schedule, corpus.load("topics"), torch.device("cpu"), mode, None)
    benchmark._side(NANO.model, recipes.get(recipe), Execution.NATIVE, *terms)
    assert len(found) == left_out


@pytest.mark.parametrize("mode", [Mode.COMPILED, Mode.EAGER])
def test_a_compiled_step_has_a_compiled_optimizer_and_its_record_says_so(monkeypatch, mode):
    made: list[object] = []

    def make(converted: object, optimizer: object, *_: object, **__: object) -> Callable[..., torch.Tensor]:
        made.append(type(optimizer))
        return lambda *_: torch.zeros(1)

    monkeypatch.setattr(benchmark, "make_step", make)
    terms = (NANO.schedule, corpus.load("topics"), torch.device("cpu"), mode)
    subject = benchmark.training_step(NANO.model, recipes.get("bf16"), Execution.NATIVE, *terms)
    subject.control()
    expected = {Mode.COMPILED: (CompiledUpdate, "compiled AdamW"), Mode.EAGER: (MasterWeightOptimizer, "torch's AdamW")}
    assert (made[0], subject.facts["optimizer"]) == expected[mode]


@pytest.mark.parametrize(("mode", "pools"), [(Mode.COMPILED_GRAPHED, ["one", "one"]), (Mode.COMPILED, [None, None])])
def test_both_graphs_use_one_memory(monkeypatch, mode, pools):
    given: list[object] = []
    monkeypatch.setattr(benchmark, "_side", lambda *terms: given.append(terms[-1]))
    handles = iter(["one", "another"])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    terms = (NANO.schedule, corpus.load("topics"), torch.device("cuda:0"), mode)
    subject = benchmark.training_step(NANO.model, recipes.get("te-current"), Execution.NATIVE, *terms)
    subject.control(), subject.candidate()
    assert given == pools


def test_garbage_of_an_earlier_cell_is_not_held_by_the_next(monkeypatch):
    class Model:
        pass

    models = [Model()]
    models[0].compiled = models  # type: ignore[attr-defined]  # a cycle, as a compiled module has
    alive = weakref.ref(models[0])
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0 if alive() is None else 1)
    del models
    assert alive() is not None
    assert turns._held(torch.device("cuda:0")) == 0
