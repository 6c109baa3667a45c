"""The loop around the steps: its order, its batches, and the step at which a run breaks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.records.cell import Execution
from fp8parity.training import loop as run
from fp8parity.training import step as steps
from fp8parity.workload import corpus, models

CPU = torch.device("cpu")


@pytest.fixture
def nano(session):
    return session.preset("nano")


def applied_of(nano):
    return recipes.apply(
        models.build(nano.model, 0), recipes.get("bf16"), Execution.NATIVE, tokens=nano.schedule.tokens
    )


class Fake:
    """Steps with made-up reports: loss 5 - 0.1 n; NaN or infinity at step ``broken``, in the loss or in the gradient of parameter 2."""

    def __init__(self, parameters: int, broken: int | None, where: str) -> None:
        self.parameters, self.non_finite, self.where = parameters, broken, where
        self.taken: list[int] = []

    def __call__(self, batches: list[steps.Batch], number: int) -> torch.Tensor:
        self.taken.append(number)
        report = torch.ones(2 + self.parameters)
        report[0] = 5 - 0.1 * number
        if number == self.non_finite:
            report[[0] if self.where == "loss" else [1, 4]] = math.nan if number % 2 else math.inf
        return report


def looped(nano, broken, where="loss", data=None, **changes):
    schedule = replace(nano.schedule, **changes)
    converted = applied_of(nano)
    optimizer = steps.MasterWeightOptimizer(converted, schedule)
    fake = Fake(len(optimizer.names), broken, where)
    data = data or corpus.load("topics")
    found = run.loop(fake, converted, optimizer, schedule, data, 0, CPU)
    return found, fake, optimizer


def test_a_sound_run_has_every_step_in_order(nano):
    found, fake, _ = looped(nano, None)
    assert found.loss == pytest.approx([5 - 0.1 * i for i in range(12)])
    assert fake.taken == list(range(12))
    assert [step for step, _ in found.validation] == [5, 11]
    assert found.non_finite is None and len(found.seconds) == 12


def test_the_source_is_asked_for_the_run_batches_only(nano):
    """A source that ends with the run raised for one batch more."""
    stream, asked = corpus.load("topics"), list[int]()

    class Ends:
        def batch(self, seed, step, rows, length):
            asked.append(step)
            return stream.batch(seed, step, rows, length)

        def validation_batches(self, schedule):
            return stream.validation_batches(schedule)

    looped(nano, None, data=Ends(), accumulation=2)
    assert asked == list(range(24))


@pytest.mark.parametrize("broken", [0, 2, 4, 5, 6, 10, 11])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_break_is_reported_at_its_step(nano, broken, where):
    """One more step has been launched by then, unless a validation came between (after steps 5 and 11)."""
    found, fake, optimizer = looped(nano, broken, where)
    assert found.non_finite.step == broken
    assert len(found.loss) == len(found.grad_norm) == broken + 1
    assert all(map(math.isfinite, found.loss[:-1]))
    assert fake.taken == list(range(broken + 1 if broken in (5, 11) else broken + 2))
    assert [step for step, _ in found.validation] == [s for s in (5, 11) if s < broken]
    wanted = (
        "the loss alone"
        if where == "loss"
        else f"gradient of {optimizer.names[2]} (1 of {len(optimizer.names)} parameters)"
    )
    assert found.non_finite.where == wanted


def test_a_report_is_copied_before_it_is_overwritten():
    """A graph writes each step's report to the same place."""
    static = torch.tensor([1.0, 2.0])
    pending = run._Readback(static)
    static.fill_(9.0)
    assert pending.read() == [1.0, 2.0]
