"""Timing of training steps: turns, a machine that slows down, how both sides are made, model FLOPs and the peak."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.recipes import ConvertedModel, Recipe
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.schema import Throughput
from fp8parity.timing import steps
from fp8parity.training.optimizer import CompiledUpdate, MasterWeightOptimizer
from fp8parity.workload import corpus
from fp8parity.workload.schedule import TIMED
from sessions import cell
from timings import ROW, THRESHOLDS
from torch import nn
from trajectories import NANO

CPU = torch.device("cpu")
FACTS = {"cell": cell("te-current"), "mode": Mode.EAGER, "optimizer": "torch's AdamW", "tokens": 64}


class Machine:
    """A machine under a made-up clock: a recipe's step takes its seconds, times a slow-down that grows with the clock."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now, self.drift = 0.0, drift
        self.order: list[str] = []

    def side(self, name: str, seconds: float) -> Any:
        def run(number: int) -> float:
            self.order.append(name)
            took = number * seconds * (1 + self.drift * self.now)
            self.now += took
            return took

        return SimpleNamespace(run=run, memory=1)


def in_turns(machine: Machine) -> Throughput:
    """Time a recipe that takes 1 / 1.25 of BF16's time."""
    sides = [machine.side("bf16", 0.025), machine.side("recipe", 0.02)]
    return steps.timed(steps.TimedPair(lambda: sides[0], lambda: sides[1], CPU, 1.0, FACTS), "s")


def test_turns_alternate_and_have_the_same_number_of_steps():
    machine = Machine()
    run = in_turns(machine)
    assert machine.order[-34:] == ["bf16", "recipe"] * 17
    assert run.steps_a_block == 10  # 0.25 s of BF16
    assert run.bf16_seconds == pytest.approx([0.25] * 17) and run.recipe_seconds == pytest.approx([0.2] * 17)


def test_a_machine_that_slows_down_does_not_bias_the_ratio():
    """The clock slows a turn by a fifth and more over the session. One side after the other would be off by 8%."""
    run = in_turns(Machine(drift=0.05))
    assert run.bf16_seconds[-1] / run.bf16_seconds[0] > 1.2
    assert abs(np.median(np.divide(run.bf16_seconds, run.recipe_seconds)) / 1.25 - 1) < 0.015


def test_a_step_that_is_not_finite_has_no_time():
    side = steps.TimedSide(lambda number: torch.tensor([1.0, math.nan]), CPU)
    with pytest.raises(ValueError, match="a timed step gave a value that is not finite"):
        side.run(2)


@pytest.mark.slow
def test_real_steps_on_a_cpu_are_timed_and_not_gated(eager, monkeypatch):
    monkeypatch.setattr(steps, "TURN_SECONDS", 0.01)
    terms = NANO.schedule, corpus.load("topics"), CPU, Mode.EAGER
    pair = steps.training_step(NANO.model, recipes.get("te-current"), Execution.EMULATED, *terms)
    run = steps.timed(pair, "s", pairs=8)
    assert len(run.bf16_seconds) == len(run.recipe_seconds) == 8
    assert all(0 < s < 60 for s in (*run.bf16_seconds, *run.recipe_seconds))
    assert speed.measured(run).ratio < 1  # the emulation is slower than BF16
    assert (run.watch, run.mode, run.tokens, run.optimizer) == (None, "eager", NANO.schedule.tokens, "torch's AdamW")
    assert speed.judge(run.model_copy(update={"bf16_memory": 1}), None, ROW, THRESHOLDS).status == "inconclusive"


@pytest.fixture
def made(monkeypatch):
    """Make the sides of a step without training it, and return how: (optimizer, mode, pool) of each, modules left out."""
    taken, left_out = list[tuple[type, Mode, object]](), list[nn.Module]()
    apply, build = recipes.apply, steps.models.build

    def applied(model: nn.Module, recipe: Recipe, execution: Execution, *, tokens: int) -> ConvertedModel:
        how = (
            Execution.EMULATED if recipe.linear.quantized else Execution.NATIVE
        )  # the emulation represents TE's linears
        return replace(apply(model, recipe, how, tokens=tokens), execution=execution)

    def make_step(converted, optimizer, schedule, mode, pool):
        taken.append((type(optimizer), mode, pool))

    monkeypatch.setattr(recipes, "apply", applied)
    monkeypatch.setattr(steps.models, "build", lambda config, seed, device: build(config, seed))
    monkeypatch.setattr(steps, "microbatches", lambda *_: [])
    monkeypatch.setattr(steps, "make_step", make_step)
    monkeypatch.setattr(steps, "leave_out", left_out.extend)
    monkeypatch.setattr(steps, "warmed", lambda make, device, graphed: make())
    handles = iter(["one", "another"])
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))

    def sides(recipe: str, execution: Execution, mode: Mode):
        device = torch.device("cuda:0")
        terms = NANO.model, recipes.get(recipe), execution, NANO.schedule, corpus.load("topics"), device, mode
        pair = steps.training_step(*terms)
        pair.control(), pair.candidate()
        return taken, len(left_out), pair.facts["optimizer"]

    return sides


def test_a_fused_layer_is_not_compiled_and_bf16_is(made):
    taken, _, _ = made("te-current", Execution.FUSED, Mode.COMPILED_GRAPHED)
    assert [mode for _, mode, _ in taken] == [Mode.COMPILED_GRAPHED, Mode.GRAPHED]


@pytest.mark.parametrize(
    ("recipe", "mode", "number"),
    [
        ("te-delayed", Mode.COMPILED_GRAPHED, 7),
        ("te-delayed", Mode.GRAPHED, 0),
        ("te-current", Mode.COMPILED_GRAPHED, 0),
    ],
)
def test_linears_with_delayed_scales_are_not_traced(made, recipe, mode, number):
    assert made(recipe, Execution.NATIVE, mode)[1] == number


@pytest.mark.parametrize(
    ("mode", "optimizer", "name", "pool"),
    [
        (Mode.COMPILED, CompiledUpdate, "compiled AdamW", None),
        (Mode.COMPILED_GRAPHED, CompiledUpdate, "compiled AdamW", "one"),
        (Mode.EAGER, MasterWeightOptimizer, "torch's AdamW", None),
    ],
)
def test_both_sides_share_optimizer_and_graph_memory(made, mode, optimizer, name, pool):
    taken, _, recorded = made("te-current", Execution.NATIVE, mode)
    assert taken == [(optimizer, mode, pool)] * 2 and recorded == name


def test_model_flops_by_hand():
    c = replace(NANO.model, dim=64, layers=1, heads=2, kv_heads=1, hidden=128)
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + c.vocab * 64
    vectors = c.parameters - matrices - (0 if c.tied else c.vocab * 64)
    assert 0 < vectors < 400  # norms: counted as parameters, no products
    assert steps.flops_per_token(c, 32) == 6 * (matrices + vectors) + 6 * 64 * 32
    assert steps.flops_per_token(c, 64) - steps.flops_per_token(c, 32) == 6 * 64 * 32


def test_timed_steps_have_a_constant_rate_after_warm_up():
    assert {timed.lr_at(step) for timed in TIMED.values() for step in range(timed.warmup, 200)} == {1e-5}
