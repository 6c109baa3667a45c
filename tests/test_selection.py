"""Which cells a platform and an execution leave to some machine, and what a session tells of the tests that it collected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.gate.selection import expected, planned, possible
from fp8parity.records.cell import Cell, Execution
from fp8parity.training.hardware import Hardware
from sessions import cell

NATIVE, EMULATED, BF16 = cell("te-block", "native"), cell("te-block", "emulated"), cell("bf16", "native")


@pytest.mark.parametrize(
    ("platform", "cells"),
    [(None, [NATIVE, EMULATED, BF16]), ("cpu", [EMULATED, BF16]), ("h100", [NATIVE, BF16]), ("b200", [EMULATED, BF16])],
)
def test_a_platform_asks_for_its_own_cells(platform, cells):
    """te-block has no native kernels on a B200, so its emulation runs there. Which machine asks has no influence."""
    for here in (Hardware("cpu", "cpu", None, platform), Hardware("h100", "cuda", (9, 0), platform)):
        assert [c for c in (NATIVE, EMULATED, BF16) if expected(c, here)] == cells
        assert [c for c in (NATIVE, EMULATED, BF16) if possible(c, here, None)] == cells


@pytest.mark.parametrize(
    ("platform", "execution", "cells"),
    [
        (None, Execution.NATIVE, [NATIVE, BF16]),
        (None, Execution.EMULATED, [EMULATED, BF16]),
        ("cpu", Execution.NATIVE, [BF16]),
        ("h100", Execution.NATIVE, [NATIVE, BF16]),
    ],
)
def test_an_execution_leaves_its_own_cells_and_the_control(platform, execution, cells):
    here = Hardware("cpu", "cpu", None, platform)
    assert [c for c in (NATIVE, EMULATED, BF16) if possible(c, here, execution)] == cells


def test_only_a_test_that_trains_is_planned_with_the_runs_of_its_seeds():
    """A check that was planned with a run would count as a training of hours."""

    def item(test: str, skipped: bool = False, **params: Cell | int) -> Any:
        mark = pytest.mark.skip if skipped else None
        return SimpleNamespace(
            nodeid=f"f.py::{test}[x]", callspec=SimpleNamespace(params=params), get_closest_marker={"skip": mark}.get
        )

    items = [
        item("test_loss_parity", trained_cell=NATIVE),
        item("test_gemm", skipped=True, cell=EMULATED),
        item("test_other", width=3),
    ]
    context: Any = SimpleNamespace(runs=lambda of: 5)
    found = planned(items, context)
    assert [(t.name, t.test, t.cell, t.runs, t.skipped) for t in found] == [
        ("f.py::test_loss_parity[x]", "test_loss_parity", NATIVE, 5, False),
        ("f.py::test_gemm[x]", "test_gemm", EMULATED, 0, True),
    ]
