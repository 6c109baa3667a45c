"""The canary: it must repeat, and every planted fault of the framework must move the number that names its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8parity.checks import canary
from fp8parity.checks.protocol import RunSpec
from fp8parity.judging import measured_numbers, numerics, policy
from fp8parity.judging.measured_numbers import MeasuredNumbers, Source
from fp8parity.judging.verdict import Verdict
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.training.variants import FAULTS, Parts, Variant
from fp8parity.workload.models import RMSNorm
from fp8parity.workload.presets import presets
from reports import DAY, GOLDEN, provenance

MICRO = presets()["micro"]
CELL = Cell(model="micro", recipe="bf16", execution=Execution.NATIVE, corpus=MICRO.corpus)
Judge = Callable[[list[Measurement]], Verdict]


def measured(variant: Variant | None = None) -> list[Measurement]:
    spec = RunSpec(RECIPES["bf16"], Execution.NATIVE, torch.device("cpu"), MICRO.model, MICRO.schedule, MICRO.corpus)
    return canary.measure(dataclasses.replace(spec, variant=variant))[0]


@pytest.fixture(scope="module")
def sound() -> list[Measurement]:
    return measured()


@pytest.fixture
def judge(sound: list[Measurement]) -> Judge:
    """Judge values against the sound values, which are stored as measured numbers."""

    def record(values: list[Measurement]) -> Measurements:
        return Measurements(cell=CELL, check="canary", values=values, provenance=provenance(), session="s")

    rules = policy.load(GOLDEN, DAY)
    stored, _ = measured_numbers.updated(MeasuredNumbers(), [record(sound)], Source.of([record(sound)], "set"), rules)
    return lambda values: numerics.judge(record(values), rules, stored)


def test_it_repeats(sound: list[Measurement], judge: Judge):
    assert [m.value for m in measured()] == pytest.approx([m.value for m in sound], rel=1e-12)
    assert judge(sound).status == "pass"
    assert len(sound) == 218


FIRST = {
    "outputs shifted": "output direction @ layers.0.attention.q_proj",
    "one output shifted": "output direction @ layers.1.mlp.up_proj",
    "attention scaled": "output scale @ layers.0.attention.q_proj",
    "attention without self": "output scale @ layers.0.attention.o_proj",
    "attention without positions": "output direction @ layers.0.attention.o_proj",
    "small gradients flushed": "gradient scale @ lm_head.weight",
    "embedding gradient flipped": "gradient direction @ embedding.weight",
    "layer not updated": "gradient scale @ layers.1.mlp.up_proj.weight",
    "weights stale": "update direction @ embedding.weight",
    "learning rate high": "update scale @ embedding.weight",
    "loss in BF16": "bf16 loss error @ initial weights",
}
"""The first number that each standard fault moves."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_standard_fault_is_seen_where_it_begins(fault: Variant, judge: Judge):
    found = judge(measured(fault))
    assert found.status == "fail"
    assert found.lines[0][0] == FIRST[fault.name]


def _optimiser(**changes: object) -> Callable[[Parts], Parts]:
    def plant(parts: Parts) -> Parts:
        for group in parts.optimizer.adamw.param_groups:
            group.update({k: v for k, v in changes.items() if k != "weight_decay" or group["weight_decay"]})
        return parts

    return plant


def _schedule(**changes: Any) -> Callable[[Parts], Parts]:
    return lambda parts: dataclasses.replace(parts, schedule=dataclasses.replace(parts.schedule, **changes))


@pytest.mark.parametrize(
    "plant",
    [
        _optimiser(betas=(0.88, 0.95)),
        _optimiser(betas=(0.9, 0.93)),
        _optimiser(eps=1.1e-4),
        _optimiser(weight_decay=1.05),
        _schedule(clip=0.103),
        _schedule(warmup=1),
    ],
    ids=["beta1", "beta2", "eps", "weight decay", "clip", "warmup"],
)
def test_every_hyper_parameter_moves_the_update_alone(plant: Callable[[Parts], Parts], judge: Judge):
    found = judge(measured(Variant("", "", plant)))
    assert found.status == "fail"
    assert {place.split(" @ ")[0] for place, _ in found.lines} <= {"update scale", "update direction"}


def test_norms_and_rotations_in_bf16_lower_their_sqnr(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    """FP32 computes the same, so only the BF16 model shows that these are no longer computed in FP32."""
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight)
    found = judge(measured())
    assert found.status == "fail"
    assert found.lines[0][0] == "bf16 output sqnr @ layers.0.attention_norm"


def test_other_weights_and_another_order_of_tokens_are_named(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    from fp8parity.workload import corpus, models

    build, stream = models.build, corpus.load(CELL.corpus)
    with monkeypatch.context() as patched:
        patched.setattr(
            models, "build", lambda config, seed, **kw: build(dataclasses.replace(config, init_std=config.init_std * 1.01), seed, **kw)
        )
        assert judge(measured()).lines[0][0] == "weight scale @ layers.0.attention.q_proj.weight"
    monkeypatch.setattr(corpus, "load", lambda name: dataclasses.replace(stream, train=stream.train.roll(1)))
    assert judge(measured()).lines[0][0] == "batch checksum @ step 0"


def test_a_tensor_of_zeros_has_numbers():
    assert canary.fingerprint("x", torch.zeros(3, 4)) == (-400.0, 0.0)
    scale, direction = canary.fingerprint("x", torch.ones(4096))
    assert scale == pytest.approx(0.0)
    assert abs(direction) < 4
