"""The update of timed steps, compared with torch's AdamW on the same gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.records.cell import Execution
from fp8parity.training.optimizer import CompiledUpdate, MasterWeightOptimizer, adamw
from fp8parity.workload import models
from torch import Tensor

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


@pytest.fixture
def nano(session):
    return session.preset("nano")


@pytest.mark.parametrize("changes", [{"clip": 0.1}, {"clip": 1e9}, {"accumulation": 3}], ids=str)
def test_weights_are_those_of_torch(nano, changes):
    (plain, expected), (ours, found) = (taken(nano, of, **changes) for of in (MasterWeightOptimizer, CompiledUpdate))
    assert torch.allclose(found, expected, rtol=1e-6)
    start = [m.float() for m in models.build(nano.model, 0).parameters()]
    assert 0.01 < furthest(plain.masters, start) < 0.05
    assert furthest(plain.masters, ours.masters) < 1e-6
    assert all(torch.equal(p, m.to(p.dtype)) for p, m in zip(ours.params, ours.masters, strict=True))
    assert list(ours.gradients) == list(plain.gradients)


@pytest.mark.parametrize("wrong", [{"decay": 0.0}, {"beta1": 0.8}, {"beta2": 0.9}, {"eps": 1e-3}], ids=str)
def test_another_hyperparameter_gives_other_weights(nano, wrong):
    def planted(converted, schedule):
        optimizer = CompiledUpdate(converted, schedule)
        optimizer.update = lambda *tensors, **constants: adamw(*tensors, **(constants | wrong))
        return optimizer

    (plain, _), (ours, _) = taken(nano, MasterWeightOptimizer), taken(nano, planted)
    assert furthest(plain.masters, ours.masters) > 1e-4


def test_a_step_keeps_no_gradients(nano):
    optimizer, _ = taken(nano, CompiledUpdate)
    assert optimizer.sums == [] and {g.ndim for g in optimizer.gradients.values()} == {0}
    assert all(m.grad is None for m in optimizer.masters) and all(p.grad is None for p in optimizer.params)


def test_a_second_microbatch_is_refused(nano):
    optimizer, _ = taken(nano, CompiledUpdate)
    optimizer.zero()
    optimizer.gather(1.0)
    with pytest.raises(ValueError, match="^a schedule with accumulation 1 gave more than one microbatch in a step$"):
        optimizer.gather(1.0)


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
