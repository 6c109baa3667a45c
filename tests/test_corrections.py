"""The corrections of predictions: what a group learns from its cells, and from what it is a part of."""

from __future__ import annotations

import math
from statistics import fmean

import made_up_gpu as gpu
import pytest
from fp8parity.prediction.calibration import SHRUNK, calibrate, corrections
from fp8parity.prediction.predictions import predictions
from fp8parity.prediction.residuals import Group, Measured, Residual, residuals
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.workload import shapes

A, B = "NVIDIA A", "NVIDIA B"
NATIVE = "te-current native"


def cell(device: str, block: bool, model: str, error: float, recipe: str = "te-current") -> Residual:
    found = Measured(device, shapes.get(model), recipe, Execution.NATIVE, Execution.NATIVE, block, 1.0, 1.0)
    return Residual(found, 1.0, 0.0, error)


def shrunk(mean: float, models: int, whole: float) -> float:
    return whole + (mean - whole) * models / (models + SHRUNK)


def test_each_group_is_shrunk_to_what_it_is_a_part_of():
    """Two cells of one model count as one."""
    cells = [
        cell(A, False, "1b", 0.1),
        cell(A, False, "base", 0.3),
        cell(A, False, "1b", 0.6, "te-block"),
        cell(B, True, "base", -0.2),
    ]
    found = corrections(cells)
    overall = shrunk(0.2, 2, 0.0)
    steps, blocks = shrunk(1.0 / 3, 2, overall), shrunk(-0.2, 1, overall)
    assert found.overall == pytest.approx(overall)
    assert found.of(Group(A, False, NATIVE)) == pytest.approx(shrunk(0.2, 2, steps))
    assert found.of(Group(A, False, "te-block native")) == pytest.approx(shrunk(0.6, 1, steps))
    assert found.of(Group(B, True, NATIVE)) == pytest.approx(shrunk(-0.2, 1, blocks))


def test_what_is_left_after_the_correction_is_the_spread():
    """All models have the same error but for 0.01: it is corrected, so the interval is narrower than the error."""
    cells = [
        cell(A, False, model, error)
        for model, error in (("small", 0.3), ("base", 0.31), ("1b", 0.29), ("llama3-8b", 0.3))
    ]
    left = [r.error - corrections([o for o in cells if o.model != r.model]).of(r.measured.group) for r in cells]
    found = calibrate(cells)
    assert found.sd == pytest.approx(math.sqrt(fmean(e**2 for e in left))) and 0.01 < found.sd < 0.1
    assert (found.n, found.models) == (4, 4)


def test_a_row_of_the_command_has_the_correction_of_its_gpu_and_kind():
    """The cells of blocks have another error than those of steps, and those of another GPU a third one."""
    work = shapes.get("1b")
    cells = [cell(gpu.NAME, False, "base", 0.1), cell(gpu.NAME, True, "base", 0.5), cell(A, False, "base", -0.4)]
    known = calibrate(cells)
    raw = calibrate([])
    for block in (False, True):
        rows, plain = (predictions(gpu.made(), work, [RECIPES["te-current"]], c, block) for c in (known, raw))
        for row, own in zip(rows, plain, strict=True):
            assert row.speed_up / own.speed_up == pytest.approx(
                math.exp(known.corrections.of(Group(gpu.NAME, block, row.label)))
            )
    assert (
        len(
            {
                known.corrections.of(g)
                for g in (Group(gpu.NAME, False, NATIVE), Group(gpu.NAME, True, NATIVE), Group(A, False, NATIVE))
            }
        )
        == 3
    )


def test_the_errors_of_a_step_in_bf16_are_its_own():
    """The measured step is twice as long as the law says, and its speed-up is 0.1 larger."""
    step = gpu.timed(shapes.get("base"), off=0.1)
    slow = step.model_copy(
        update={name: [2 * s for s in getattr(step, name)] for name in ("bf16_seconds", "recipe_seconds")}
    )
    [found] = residuals(gpu.made(("small", "1b", "base", "llama3-8b")), [slow])
    assert found.bf16_error == pytest.approx(math.log(2), abs=0.02)
    assert found.error == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    ("group", "like"),
    [
        (Group(A, False, "te-delayed fused"), Group(A, False)),
        (Group(A, True, NATIVE), None),
        (Group(gpu.NAME, False, NATIVE), None),
    ],
)
def test_an_unknown_group_has_that_of_its_gpu_and_kind_or_else_of_all(group, like):
    found = corrections([cell(A, False, "1b", 0.4), cell(A, False, "base", 0.4)])
    assert found.of(group) == (found.groups[like] if like else found.overall) != 0


def test_without_cells_nothing_is_corrected():
    assert corrections([]).of(Group(A, False, NATIVE)) == 0
