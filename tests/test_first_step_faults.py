"""Faults of one step's arithmetic, planted in the emulation: the first step's gradients show them. These tests train."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import goldens, policy
from fp8parity.judging.first_step import first_step
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.records.cell import Execution
from fp8parity.training import loop
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from sessions import DAY, GOLDEN


@cache
def one_step(recipe: str, seed: int = 0, steps: int = 1):
    preset = presets()["tiny"]
    schedule = replace(preset.schedule, steps=steps, validation_rows=4)
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    return loop.train(preset.model, recipes.get(recipe), execution, schedule, corpus.load("topics"), seed, device=torch.device("cpu"))


def judged(made):
    return first_step([made], [one_step("bf16")], policy.load(GOLDEN, DAY), goldens.load(GOLDEN).numbers)


def test_the_first_gradients_are_recorded_by_parameter(eager):
    made = one_step("te-current", steps=2)
    assert made.grad_norm[0] != pytest.approx(made.grad_norm[1], rel=1e-3)
    total = sum(v**2 for v in made.first_gradients.values()) ** 0.5
    assert total == pytest.approx(made.grad_norm[0], rel=1e-6)
    assert set(made.first_gradients) == set(one_step("bf16").first_gradients)
    assert not judged(made).red


OPERAND = EmulatedLinear.operand


def _scaled(names, factor, where):
    """The operands ``names`` of linears whose weight has ``where`` outputs decode to ``factor`` times what they should."""

    def operand(self, name, x):
        data, outer = OPERAND(self, name, x)
        return (data, outer * factor) if name in names and self.out_features == where else (data, outer)

    return operand


@pytest.mark.parametrize(
    ("recipe", "names", "factor", "outputs", "text"),
    [
        ("te-block", ("wgrad_dy",), 0.0, 512, "_proj.weight 0.0000x BF16's, expected 0.9300 to 1.0700"),
        ("te-current", ("dgrad_dy",), 1.1, 512, "x BF16's, expected 0.9300 to 1.0700"),
        ("te-current", ("fprop_w",), 0.5, 64, "attention.q_proj.weight 0.2479x"),
    ],
    ids=["weight gradients are lost", "a gradient's scale is off by a tenth", "a weight's scale by two"],
)
def test_a_fault_of_the_arithmetic_is_found(eager, monkeypatch, recipe, names, factor, outputs, text):
    monkeypatch.setattr(EmulatedLinear, "operand", _scaled(names, factor, outputs))
    found = judged(one_step.__wrapped__(recipe))
    assert found.red
    assert text in found.text
