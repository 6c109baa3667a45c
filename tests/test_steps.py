"""One optimizer step, compared with torch.optim, and modes with each other."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity import recipes
from fp8parity.records.cell import Execution, Mode
from fp8parity.training import loop as run
from fp8parity.training import step as steps
from fp8parity.workload import corpus, models
from narrowed import some
from sessions import BRIEF, cell
from torch import nn

CPU = torch.device("cpu")


def applied_of(nano, recipe="bf16", seed=0):
    execution = Execution.EMULATED if recipes.get(recipe).linear.quantized else Execution.NATIVE
    return recipes.apply(models.build(nano.model, seed), recipes.get(recipe), execution, tokens=nano.schedule.tokens)


def trained(nano, mode, recipe="bf16", count=4):
    """Reports of the first ``count`` steps, FP64 [count, 2 + parameters]."""
    converted = applied_of(nano, recipe)
    take = steps.make(converted, steps.MasterWeightOptimizer(converted, nano.schedule), nano.schedule, mode)
    stream = corpus.load("topics")
    return torch.stack(
        [take(run.microbatches(stream, nano.schedule, 0, i, CPU), i).clone().double() for i in range(count)]
    )


@pytest.mark.parametrize("clip", [0.1, 1e9])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_updates_are_those_of_torch_optim(nano, clip, accumulation):
    """Four steps of warm-up and decay beside FP32 weights under AdamW, clip_grad_norm_ and an average over the microbatches."""
    schedule = replace(nano.schedule, clip=clip, accumulation=accumulation, steps=4, warmup=2, lr=1e-2)
    converted, stream = applied_of(nano), corpus.load("topics")
    optimizer = steps.MasterWeightOptimizer(converted, schedule)
    take = steps.make(converted, optimizer, schedule, Mode.EAGER)
    model = models.build(nano.model, 0)
    weights = [nn.Parameter(p.detach().float()) for p in model.parameters()]
    matrices, vectors = [w for w in weights if w.ndim > 1], [w for w in weights if w.ndim <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors}]
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, foreach=False)
    for i, lr in enumerate([5e-3, 1e-2, 1e-2, 5e-3]):
        batches = run.microbatches(stream, schedule, 0, i, CPU)
        assert len(batches) == accumulation
        loss, norm, *each = take(batches, i).tolist()
        parts = []
        for w in weights:
            w.grad = torch.zeros_like(w)
        for inputs, targets in batches:
            model.zero_grad()
            parts.append(steps.cross_entropy(model, inputs, targets))
            parts[-1].backward()
            for w, p in zip(weights, model.parameters(), strict=True):
                some(w.grad).add_(some(p.grad), alpha=1 / accumulation)
        assert each == pytest.approx([float(some(w.grad).norm()) for w in weights], rel=1e-5)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(weights, clip)), rel=1e-5)
        assert (norm > clip) == (clip == 0.1)
        assert loss == pytest.approx(float(sum(p.detach() for p in parts)) / accumulation, rel=1e-6)
        for group in reference.param_groups:
            group["lr"] = lr
        reference.step()
        for name, p, m, w in zip(optimizer.names, optimizer.params, optimizer.masters, weights, strict=True):
            assert float((m - w).detach().abs().max()) < 1e-6, name  # an update is up to 1e-2
            assert torch.equal(p, m.to(p.dtype)), name
        with torch.no_grad():  # the next gradients are taken at the very same weights
            for p, m, w in zip(model.parameters(), optimizer.masters, weights, strict=True):
                p.copy_(m)
                w.copy_(m)


def test_gradients_have_the_names_before_conversion(nano):
    """A fused layer's parameter holds two of the plain model's, one above the other."""
    plain = applied_of(nano)
    up = next(n for n, _ in plain.model.named_parameters() if "up_proj" in n)

    def original(tensors):
        return {
            k: v
            for n, t in tensors.items()
            for k, v in (zip(("top", "bottom"), t.chunk(2), strict=True) if n == up else [(n, t)])
        }

    found = []
    for converted in (plain, replace(applied_of(nano), original=original)):
        optimizer = steps.MasterWeightOptimizer(converted, nano.schedule)
        take = steps.make(converted, optimizer, nano.schedule, Mode.EAGER)
        norms = take(run.microbatches(corpus.load("topics"), nano.schedule, 0, 0, CPU), 0).tolist()
        found.append((norms[1], dict(zip(optimizer.gradients, norms[2:], strict=True))))
    (total, whole), (same, halves) = found
    assert same == pytest.approx(total, rel=1e-6)
    assert math.hypot(halves["top"], halves["bottom"]) == pytest.approx(whole[up], rel=1e-6)
    assert halves["top"] != pytest.approx(halves["bottom"], rel=1e-6)
    assert up not in halves


def test_masters_start_from_the_initial_weights(nano):
    converted = applied_of(nano)
    name, weight = next((n, p) for n, p in converted.model.named_parameters() if p.ndim == 2)
    given = torch.full_like(weight, 0.125)
    optimizer = steps.MasterWeightOptimizer(replace(converted, initial={name: given}), nano.schedule)
    assert torch.equal(optimizer.masters[optimizer.names.index(name)], given.float())
    other = next(i for i, n in enumerate(optimizer.names) if n != name)
    assert torch.equal(optimizer.masters[other], optimizer.params[other].float())


@pytest.mark.slow
def test_compiled_steps_give_the_losses_of_eager_ones(nano, eager):
    """Fused kernels sum in another order, and keep casts between operations: losses agree to 1e-4.

    The batches have the shape of those in tests/test_modes.py, which then finds these kernels in Inductor's cache.
    """
    nano = replace(nano, schedule=replace(nano.schedule, rows=BRIEF.rows, length=BRIEF.length))
    eager, compiled = trained(nano, "eager", "te-current"), trained(nano, "compiled", "te-current")
    assert torch.equal(eager, trained(nano, "eager", "te-current"))
    assert float((compiled[:, 0] / eager[:, 0] - 1).abs().max()) < 1e-4
    assert float((compiled[:, 1] / eager[:, 1] - 1).abs().max()) < 1e-3
    assert len(set(eager[:, 0].tolist())) == 4


def test_a_graph_without_a_gpu_is_refused(session):
    session.settings = replace(session.settings, mode=Mode.COMPILED_GRAPHED)
    with pytest.raises(ValueError, match="^mode compiled-graphed captures CUDA graphs and needs a GPU"):
        session.trajectory(cell("bf16", "native", "nano"), 0)


def test_the_default_mode_depends_on_device_and_recipe():
    gpu = torch.device("cuda:0")
    found = {
        name: run.mode_for(recipes.get(name), Execution.NATIVE, gpu) for name in ("bf16", "te-current", "ao-rowwise")
    }
    assert found == {"bf16": "graphed", "te-current": "graphed", "ao-rowwise": "compiled-graphed"}
    assert run.mode_for(recipes.get("ao-rowwise"), Execution.EMULATED, gpu) == "graphed"
    assert run.mode_for(recipes.get("ao-rowwise"), Execution.NATIVE, CPU) == "eager"


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


@pytest.mark.parametrize("broken", [0, 5, 6, 11])
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
