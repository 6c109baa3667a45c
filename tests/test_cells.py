"""What the names of cells and modes mean, and how records are grouped by machine."""

from __future__ import annotations

import pytest
import timings
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.sets import machines


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


def test_what_files_hold_of_modes_never_changes():
    """Records of older versions hold these words."""
    assert [str(m) for m in Mode] == ["eager", "compiled", "graphed", "compiled-graphed"]


def test_a_count_beyond_64_bits_is_refused():
    assert Cell(model="tiny", recipe="bf16", execution=Execution.NATIVE, ranks=2**63 - 1).ranks == 2**63 - 1
    with pytest.raises(ValueError, match="less than or equal to 9223372036854775807"):
        Cell(model="tiny", recipe="bf16", execution=Execution.NATIVE, ranks=2**63)


def test_names_of_cells():
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE)
    assert (cell.id, cell.title, cell.label) == (
        "te-current-tiny-native",
        "te-current-tiny-native",
        "te-current native",
    )
    assert cell.on("text:x").title == "te-current-tiny-native on text:x"
    assert (cell.control.id, cell.control.label, cell.control.is_control, cell.is_control) == (
        "bf16-tiny-native",
        "bf16",
        True,
        False,
    )


def test_a_machine_keeps_each_kind_of_record_apart(trajectory):
    run = trajectory()
    number = Measurement(metric="sqnr", where="w", value=30.0)
    check = Measurements(cell=run.cell, check="gemm", values=[number], provenance=run.provenance, session="s")
    timing, planted = timings.made(provenance=run.provenance), trajectory(variant="replica1")
    [machine] = machines([timing, check, planted, run])
    assert machine.runs == {run.cell: [run]}
    assert machine.checks == {(run.cell, "gemm"): check}
    assert machine.timings == {(timing.cell, "training-step"): timing}
    assert machine.variants == [planted]


def test_of_a_seed_in_several_sessions_the_first_counts(trajectory):
    first, second, other = trajectory(session="a"), trajectory(session="b"), trajectory(seed=1, session="b")
    [machine] = machines([first, second, other])
    assert machine.seeds(first.cell) == {0: first, 1: other}
    assert machine.control(trajectory("te-current", session="b")) == second
    assert machine.control(trajectory("te-current", session="c")) == first
    assert machine.control(trajectory("te-current", seed=9)) is None
