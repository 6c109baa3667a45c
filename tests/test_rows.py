"""Rows of hand-written tables: their reasons, the recipes that they inherit, and the place of a fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp8parity.judging.policy import LossRow
from fp8parity.judging.policy.selectors import Alike, inherited, line_of, read_rows
from fp8parity.records.cell import Cell, Execution, Strict

WHY = "made up it"


def test_a_reason_has_ten_letters_or_more():
    assert len(WHY) == 10
    assert LossRow(margin=0.005, why=WHY).why == Alike(recipe=("a",), base="b", why=WHY).why == WHY
    with pytest.raises(ValueError, match="at least 10 characters"):
        LossRow(margin=0.005, why=WHY[1:])
    with pytest.raises(ValueError, match="at least 10 characters"):
        Alike(recipe=("a",), base="b", why=WHY[1:])


def test_a_row_of_a_base_selects_the_recipes_that_are_alike():
    """Each once, and a row that names another recipe stays as it is."""
    alike = (Alike(recipe=("b", "c"), base="a", why=WHY), Alike(recipe=("z",), base="x", why=WHY))
    rows = [LossRow(margin=0.005, recipe=names, why=WHY) for names in (("a",), ("a", "c"), ("d",), ())]
    found = inherited(rows, alike)
    assert [row.recipe for row in found] == [("a", "b", "c"), ("a", "c", "b"), ("d",), ()]
    cell = Cell(model="nano", recipe="c", execution=Execution.NATIVE)
    assert [row.selects(cell) for row in found] == [True, True, False, True]


def test_the_line_of_a_row_is_that_of_its_header():
    """A header that is written in another way has the first line of the file."""
    text = "# one\n[[loss]]\nmargin = 1\n  [[loss]]  \n[[speed]]\n[[ golden ]]\n"
    assert [line_of(text, "loss", i) for i in (0, 1, 2, 3)] == [2, 4, 1, 1]
    assert (line_of(text, "speed", 0), line_of(text, "golden", 0)) == (5, 1)


def test_an_unknown_table_is_named_beside_those_that_are_known(tmp_path: Path):
    path = tmp_path / "policy.toml"
    path.write_text("[[xs]]\n[[los]]\n")
    kinds: dict[str, type[Strict]] = {"loss": LossRow, "alike": Alike}
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: unknown table 'los'; known: loss, alike$"):
        read_rows(path, kinds)
    assert read_rows(path, kinds, others=True) == {"loss": [], "alike": []}


def test_a_table_that_is_not_of_rows_is_told_how_to_write_them(tmp_path: Path):
    path = tmp_path / "policy.toml"
    for text in ("loss = 1\n", "[loss]\nmargin = 1\n", "loss = [1]\n"):
        path.write_text(text)
        says = f"{path}: 'loss' is not a table of rows; write each row below a line [[loss]]"
        with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
            read_rows(path, {"loss": LossRow})
