"""What the names of cells and modes mean."""

from __future__ import annotations

import pytest
from fp8parity.records.cell import Cell, Execution, Mode


@pytest.mark.parametrize(
    ("mode", "compiled", "graphed", "without"),
    [
        (Mode.EAGER, False, False, Mode.EAGER),
        (Mode.COMPILED, True, False, Mode.COMPILED),
        (Mode.GRAPHED, False, True, Mode.EAGER),
        (Mode.COMPILED_GRAPHED, True, True, Mode.COMPILED),
    ],
)
def test_modes(mode, compiled, graphed, without):
    assert (mode.compiled, mode.graphed, mode.without_graph) == (compiled, graphed, without)


def test_names_of_cells():
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE)
    assert (cell.id, cell.title, cell.label) == ("te-current-tiny-native", "te-current-tiny-native", "te-current native")
    assert cell.on("text:x").title == "te-current-tiny-native on text:x"
    assert (cell.control.id, cell.control.label, cell.control.is_control, cell.is_control) == ("bf16-tiny-native", "bf16", True, False)
