"""The corrections of predictions: what a group learns from its cells, and from what it is a part of."""

from __future__ import annotations

import made_up_gpu as gpu
import pytest
from fp8parity.prediction.calibration import SHRUNK, Group, Measured, Residual, corrections
from fp8parity.records.cell import Execution
from fp8parity.workload import shapes

A, B = "NVIDIA A", "NVIDIA B"
NATIVE = "te-current native"


def cell(device: str, block: bool, model: str, error: float, recipe: str = "te-current") -> Residual:
    found = Measured(device, shapes.get(model), recipe, Execution.NATIVE, Execution.NATIVE, block, 1.0, 1.0)
    return Residual(found, 1.0, 0.0, error)


def shrunk(mean: float, n: int, whole: float) -> float:
    return whole + (mean - whole) * n / (n + SHRUNK)


def test_each_group_is_shrunk_to_what_it_is_a_part_of():
    cells = [cell(A, False, "1b", 0.1), cell(A, False, "base", 0.3), cell(A, False, "1b", 0.6, "te-block"), cell(B, True, "base", -0.2)]
    found = corrections(cells)
    overall = shrunk(0.2, 2, 0.0)
    steps, blocks = shrunk(1.0 / 3, 3, overall), shrunk(-0.2, 1, overall)
    assert found.overall == pytest.approx(overall)
    assert found.of(Group(A, False, NATIVE)) == pytest.approx(shrunk(0.2, 2, steps))
    assert found.of(Group(A, False, "te-block native")) == pytest.approx(shrunk(0.6, 1, steps))
    assert found.of(Group(B, True, NATIVE)) == pytest.approx(shrunk(-0.2, 1, blocks))


@pytest.mark.parametrize(
    ("group", "like"),
    [(Group(A, False, "te-delayed fused"), Group(A, False)), (Group(A, True, NATIVE), None), (Group(gpu.NAME, False, NATIVE), None)],
)
def test_an_unknown_group_has_that_of_its_gpu_and_kind_or_else_of_all(group, like):
    found = corrections([cell(A, False, "1b", 0.4), cell(A, False, "base", 0.4)])
    assert found.of(group) == (found.groups[like] if like else found.overall) != 0


def test_without_cells_nothing_is_corrected():
    assert corrections([]).of(Group(A, False, NATIVE)) == 0
