"""The stresses of the check state, on the CPU: sound recipes have their numbers, and each planted fault is seen at its place."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity.checks import state
from fp8parity.checks.protocol import RunSpec
from fp8parity.checks.short_run import ShortRun
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.recipes import RECIPES
from fp8parity.recipes.registry import preload, skip_reason
from fp8parity.records.cell import Execution
from fp8parity.training.hardware import detect, reset_state
from sessions import shorten

from conftest import subject

QUIET = ["before the jump", "after the jump", "next step"]


@pytest.fixture
def jump(session, eager):
    """The numbers of ``state.jump`` of a small model, by place."""
    return lambda recipe, execution="emulated": {
        m.where: m.value for m in state.jump(subject(session, recipe, execution))
    }


@pytest.fixture
def uses(session, eager):
    """The numbers of ``state.many_uses``, by GEMM."""
    return lambda recipe, execution="emulated": {
        m.where: m.value for m in state.many_uses(subject(session, recipe, execution))
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "execution", "low", "high"), [("bf16", "native", 38, 56), ("te-current", "emulated", 20, 34)]
)
def test_current_scale_does_not_notice_a_jump(jump, recipe, execution, low, high):
    assert all(low <= value <= high for value in jump(recipe, execution).values())


@pytest.mark.slow
def test_stale_scale_is_seen_in_the_jump(jump, monkeypatch):
    """Current scaling that keeps the first scale of each operand. The model has 7 linears, and a linear has 3 operands."""
    kept: dict[object, torch.Tensor] = {}
    real = SCALE_RULES["te-fp32"]
    calls = iter(range(10**9))

    def stale(amax, fmt):
        return kept.setdefault((next(calls) % 21, fmt.name), real(amax, fmt))

    monkeypatch.setitem(SCALE_RULES, "te-fp32", stale)
    found = jump("te-current")
    assert found["the jump"] <= 3
    assert all(found[place] >= 20 for place in QUIET)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "execution", "wanted"),
    [
        ("bf16", "native", (55.5, 55.5, 40.2)),
        ("te-current", "emulated", (28.3, 24.3, 24.4)),
        ("te-delayed", "emulated", (28.3, 24.3, 24.4)),
    ],
)
def test_many_uses_have_the_noise_of_their_formats(uses, recipe, execution, wanted):
    assert [round(v, 1) for v in uses(recipe, execution).values()] == pytest.approx(wanted, abs=0.5)


@pytest.mark.slow
def test_overwritten_operand_is_seen_in_wgrad(uses, monkeypatch):
    """All uses share the buffer of their input, as a workspace that is reused too early."""
    real = EmulatedLinear.operand
    buffer: list[torch.Tensor] = []

    def shared(self, name, x):
        data, scale = real(self, name, x)
        if name != "fprop_x":
            return data, scale
        if not buffer:
            buffer.append(data.clone())
        buffer[0].data.copy_(data)  # unseen by autograd, as in a vendor's kernel
        return buffer[0], scale

    monkeypatch.setattr(EmulatedLinear, "operand", shared)
    found = uses("te-current")
    assert found["wgrad"] < 3
    assert found["fprop"] > 27 and found["dgrad"] > 23


ON_CPU = [
    *(("te-delayed", "te-delayed-recent"), ("te-nvfp4", "te-mxfp8-2d")),
    *(("ao-tensorwise", "ao-tensorwise-filtered"), ("ao-rowwise-gw-hp", "ao-mxfp8")),
]
"""Recipes that keep scales, draw noise, or convert in other ways, each with one of its kind."""
NATIVE = [("te-block", "te-block-fp32"), ("te-delayed", "te-delayed-recent"), ("te-delayed", "te-current")]
"""Recipes of one class of Transformer Engine with other options, and two classes."""

STEPS = 2


def alone(spec: RunSpec) -> list[torch.Tensor]:
    """The gradients of a run, and the isolation that ``Runner`` and the loop give each cell."""
    try:
        return ShortRun(spec).run(STEPS)
    finally:
        reset_state()


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def followed_by(first: RunSpec, second: RunSpec) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """A recipe trains the same before and after another one, and the other one does something else. Return the gradients of both."""
    before, other = alone(first), alone(second)
    assert equal(before, alone(first))
    assert not equal(before, other)
    return before, other


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), ON_CPU)
def test_one_after_the_other_and_both_at_a_time(session, monkeypatch, a, b):
    shorten(monkeypatch)
    specs = [session.subject(name) for name in (a, b)]
    wanted = followed_by(*specs)
    runs = [ShortRun(spec) for spec in specs]
    taken = [[run.step(n) for run in runs] for n in range(STEPS)]
    for i, spec in enumerate(specs):
        assert equal(wanted[i], [steps[i] for steps in taken]), spec.recipe.name


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("a", "b"), NATIVE)
def test_transformer_engine_on_a_gpu(session, a, b):
    hardware = detect(None)
    for name in (a, b):
        why = skip_reason(RECIPES[name], Execution.NATIVE, hardware.capability)
        if why:
            pytest.skip(why)
    preload(hardware.capability)
    first, second = (replace(session.subject(n, "native"), device=torch.device(hardware.device)) for n in (a, b))
    followed_by(first, second)
