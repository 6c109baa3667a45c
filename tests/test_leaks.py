"""Two recipes in one process: each trains as if it were alone, to the bit. Transformer Engine's own modules need a GPU here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity.checks.protocol import RunSpec
from fp8parity.checks.short_run import ShortRun
from fp8parity.recipes import RECIPES
from fp8parity.recipes.registry import preload, skip_reason
from fp8parity.records.cell import Execution
from fp8parity.training.hardware import detect, reset_state

EMULATED = [
    ("te-current", "te-current-pow2"),
    ("te-delayed", "te-delayed-recent"),
    ("te-nvfp4", "te-mxfp8-2d"),
    ("te-block", "ao-rowwise"),
]
TORCHAO = [
    ("ao-tensorwise", "ao-rowwise"),
    ("ao-tensorwise", "ao-tensorwise-filtered"),
    ("ao-rowwise-gw-hp", "ao-mxfp8"),
]
NATIVE = [
    ("te-current", "te-current-pow2"),
    ("te-current", "te-current-backward-dequantized"),
    ("te-block", "te-block-fp32"),
    ("te-block", "te-block-e5m2"),
    ("te-delayed", "te-delayed-recent"),
    ("te-delayed", "te-current"),
]
"""Recipes of one class of Transformer Engine with other options, and two classes."""

pytestmark = pytest.mark.usefixtures("eager")
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


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), EMULATED + TORCHAO)
def test_one_after_the_other_and_both_at_a_time(session, a, b):
    specs = [session.subject(name) for name in (a, b)]
    wanted = followed_by(*specs)
    runs = [ShortRun(spec) for spec in specs]
    taken = [[run.step(n) for run in runs] for n in range(STEPS)]
    for i, spec in enumerate(specs):
        assert equal(wanted[i], [steps[i] for steps in taken]), spec.recipe.name


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
