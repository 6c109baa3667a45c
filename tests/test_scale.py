"""Large sets: work grows with the number of records and not with its square, and pages stay small. Calls are counted, not seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import reports
import scale
from fp8parity.judging.compare.change import only_one_side
from fp8parity.records.cell import Cell
from fp8parity.report.evidence import Evidence

MANY = 300


class Counted(str):
    """A text that counts how often it is hashed."""

    __slots__ = ()

    hashed = 0

    def __hash__(self) -> int:
        Counted.hashed += 1
        return str.__hash__(self)


def test_what_one_side_lacks_is_found_without_a_search_for_each_item():
    """Each item is hashed a few times. A set of all items for every item would hash them 300 times."""
    Counted.hashed = 0
    items = [("cell", Counted(i)) for i in range(MANY)]
    [missing] = only_one_side(items, items[:-1])
    assert len(missing.items) == 1
    assert Counted.hashed <= 8 * MANY


def test_a_report_finds_the_records_of_a_cell_without_a_search(monkeypatch):
    """Every cell is asked for once. If each question looked through all records, it would take 300 x 300 comparisons and more."""
    runs = [reports.run("tiny", f"te-current-plugin{i}", 0, 8) for i in range(MANY)]
    evidence, compared = Evidence(records=runs), 0
    equal = Cell.__eq__

    def counted(a: Cell, b: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(a, b)

    monkeypatch.setattr(Cell, "__eq__", counted)
    for r in runs:
        cell = r.cell.model_copy()
        assert evidence.of(cell) == [r]
        assert evidence.trajectory(cell, 0) is r
        assert evidence.size("tiny") == 1
    assert compared <= 8 * MANY


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> dict[int, Path]:
    return {MANY: scale.generate(scale.SOURCES, MANY, tmp_path_factory.mktemp("scale"))}


def test_a_large_set_is_made_of_cells_with_names_of_plugins(sets):
    names = [p.name for p in sets[MANY].glob("*.json")]
    assert len(names) == MANY
    assert sum("-plugin" in name for name in names) > MANY / 4
