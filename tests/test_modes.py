"""The check of compiled and graphed steps, on the CPU: sound stand-ins are green, and each planted fault is found by its metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fp8parity.checks import modes, short_run
from fp8parity.checks.gradients import PROBE
from fp8parity.numerics.emulation import DelayedScale, EmulatedLinear
from fp8parity.numerics.spec import LinearSpec
from fp8parity.recipes import ConvertedModel
from fp8parity.records.cell import Execution, Mode
from fp8parity.training import compilation
from fp8parity.training import step as steps
from fp8parity.workload.schedule import Schedule
from sessions import BRIEF, cell

pytestmark = pytest.mark.slow
CELL = cell("te-current", "emulated", "nano")
REAL = steps.make
Call = tuple[list[steps.Batch], int]
"""What a step is called with."""
Change = Callable[[Call, list[steps.Batch], int], Call]


class Replay:
    """A graph's stand-in: eager steps, from the fourth on through ``change(first captured batches, batches, step)``."""

    def __init__(
        self,
        change: Change | None,
        converted: ConvertedModel,
        optimizer: steps.MasterWeightOptimizer,
        schedule: Schedule,
    ) -> None:
        self.take, self.change = REAL(converted, optimizer, schedule, Mode.EAGER), change
        self.captured: Call | None = None
        self.graph = None if change is None else object()

    def __call__(self, batches: list[steps.Batch], step: int) -> torch.Tensor:
        if step >= steps.WARMUP:
            self.captured = self.captured or (batches, step)
            batches, step = self.change(self.captured, batches, step) if self.change else (batches, step)
        return self.take(batches, step)


CHANGES: dict[str, Change | None] = {
    "sound": lambda captured, batches, step: (batches, step),
    "batch": lambda captured, batches, step: (captured[0], step),
    "learning rate": lambda captured, batches, step: (batches, captured[1]),
    "no capture": None,
}


def uncompiled(model) -> None:
    """Compilation that leaves everything eager."""


def fallen_back(model) -> None:
    """Compilation that loses the quantizers."""
    for module in model.modules():
        if isinstance(module, EmulatedLinear):
            module.spec = LinearSpec()


def rounded_elsewhere(model) -> None:
    """Compilation that rounds once more between the blocks, to eight bits."""
    for block in model.layers:
        block.register_forward_hook(lambda _, __, y: (y * 1.3).to(torch.float8_e4m3fn).to(y.dtype) / 1.3)


def scales_compiled_in(model) -> None:
    """Compilation that takes delayed scales for constants: they stay as the first batch found them."""
    for module in model.modules():
        if isinstance(module, DelayedScale):
            module.update = lambda amax: None  # type: ignore[method-assign]  # the planted fault


@pytest.fixture
def judged(session, eager, monkeypatch):
    def run(compile_blocks=None, change="sound", cell=CELL) -> set[str]:
        """The metrics that are red."""
        for module in (modes, short_run):  # the first step, whose delayed scales are cold, and one more
            monkeypatch.setattr(module, "STEPS", 2)
            monkeypatch.setattr(module, "MICROBATCHES", 2)  # no weight is cached here, so none is in the middle
            monkeypatch.setattr(module, "PROBE", BRIEF)
        if compile_blocks:
            monkeypatch.setattr(compilation, "compile_blocks", compile_blocks)
        real = steps.make

        def make(converted, optimizer, schedule, mode):
            terms = converted, optimizer, schedule
            return Replay(CHANGES[change], *terms) if mode.endswith("graphed") else real(*terms, Mode.EAGER)

        monkeypatch.setattr(steps, "make", make)
        verdict = session.numerics("modes", cell)
        assert verdict.green == (verdict.status == "pass")
        return {place.removesuffix(" @ tiny steps") for place, _ in verdict.lines if " @ " in place}

    return run


def test_sound_steps_are_green(judged):
    assert judged(cell=cell("bf16", "native", "nano")) == set()


@pytest.mark.parametrize(
    ("compile_blocks", "of", "red"),
    [
        (uncompiled, CELL, {"compiled graphs"}),
        (fallen_back, CELL, {"compiled graphs", "compiled sqnr loss"}),
        (
            rounded_elsewhere,
            cell("bf16", "native", "nano"),
            {"compiled graphs", "compiled difference", "compiled sqnr loss"},
        ),
    ],
)
def test_faults_of_compilation_are_found(judged, compile_blocks, of, red):
    assert judged(compile_blocks, cell=of) == red


def test_scale_that_was_compiled_in_is_found(judged):
    red = judged(scales_compiled_in, cell=cell("te-delayed", "emulated", "nano"))
    assert {"compiled graphs", "compiled difference"} <= red


def test_graphed_step_shows_its_graph(monkeypatch):
    """The check reads it, so that a step that only runs eagerly is found."""
    monkeypatch.setattr(steps, "_capture_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    optimizer = SimpleNamespace(masters=[SimpleNamespace(is_cuda=True)])
    terms: Any = (SimpleNamespace(generator=None), optimizer, PROBE, Mode.GRAPHED)
    take: Any = steps.make(*terms)
    assert take.graph is None


def test_step_without_a_graph_is_an_error(judged):
    with pytest.raises(ValueError, match="^graphed steps captured no graph: there is nothing to compare$"):
        judged(uncompiled, "no capture")


@pytest.mark.parametrize("change", ["batch", "learning rate"])
def test_values_captured_by_a_graph_are_found(judged, change):
    replayed = {"graphed difference @ replayed", "compiled-graphed difference @ replayed"}
    assert judged(uncompiled, change) == {"compiled graphs"} | replayed


def test_fused_layer_is_graphed_alone(session):
    spec = replace(session.spec(CELL), execution=Execution.FUSED)
    with pytest.MonkeyPatch.context() as patch:
        steps_of = {"eager": [0] * 7, "graphed": [0, 0, 0, 0, 0, 1, 0]}
        patch.setattr(modes, "_gradients", lambda spec, mode: [torch.tensor([1.0, 2.0 + d]) for d in steps_of[mode]])
        found = modes.measure(spec)[0]
    assert [(m.metric, m.where, m.value) for m in found] == [
        ("graphed difference", "before the capture", 0),
        ("graphed difference", "replayed", pytest.approx(1 / 5**0.5)),
        ("unequal", "graphed difference @ replayed", 1),
        ("compared", "graphed difference @ replayed", 4),
    ]
