"""The stresses of the check state, on the CPU: sound recipes have their numbers, and each planted fault is seen at its place."""

from __future__ import annotations

import pytest
import torch
from fp8parity.checks import state
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.scaling import SCALE_RULES

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


@pytest.mark.parametrize(
    ("recipe", "execution", "low", "high"), [("bf16", "native", 38, 56), ("te-current", "emulated", 20, 34)]
)
def test_current_scale_does_not_notice_a_jump(jump, recipe, execution, low, high):
    assert all(low <= value <= high for value in jump(recipe, execution).values())


def test_delayed_scaling_clips_the_jump_alone(jump):
    found = jump("te-delayed")
    assert -1 <= found["the jump"] <= 3
    assert all(20 <= found[place] <= 34 for place in QUIET)


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
