"""The tables of README.md and docs/recipes.md are those that committed record sets give."""

from __future__ import annotations

import datetime
import runpy
from functools import cache

import pytest
from documents import ROOT
from fp8parity.cli import main
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import name_of, write_json

MODULE = runpy.run_path(str(ROOT / "benchmarks" / "readme_table.py"))
RECORDS = ROOT / "golden" / "records"
DAY = datetime.date(2026, 11, 22)
"""Known failures end, but the README's tables stay."""


@cache
def report(name: str):
    return MODULE["report"](DAY, RECORDS / f"{name}.zip")


@pytest.mark.parametrize(
    ("name", "table", "rows", "page"),
    [
        ("h200", "gaps", 13, "README.md"),
        ("h200-throughput", "speeds", 9, "README.md"),
        ("h200-experts", "gaps", 6, "docs/recipes.md"),
    ],
)
def test_table_is_that_of_the_records(name, table, rows, page):
    lines = MODULE[table](report(name))
    assert len(lines) == 2 + rows and report(name).green
    assert "\n".join(lines) in (ROOT / page).read_text()


def test_readme_states_the_number_of_checks():
    assert f"All {len(report('h200').verdicts)} checks of this set are green" in (ROOT / "README.md").read_text()


def test_first_table_is_that_of_the_records(tmp_path, capsys, monkeypatch):
    """These records hold a third seed, which no cell of the first command needs."""
    monkeypatch.setenv("COLUMNS", "160")
    for record in sets.load([RECORDS / "micro-xeon.zip"]):
        if isinstance(record, Trajectory) and record.seed < 2:
            write_json(tmp_path / name_of(record), record)
    assert main(["judge", str(tmp_path), "--golden-dir", str(ROOT / "golden")]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if " micro " in line]
    assert len(rows) == 10
    assert [row for row in rows if row not in (ROOT / "README.md").read_text().splitlines()] == []


@pytest.mark.parametrize("path", sorted((ROOT / "docs/evidence").glob("*.py")), ids=lambda p: p.name)
def test_reproducer_of_a_finding_stands_alone(path):
    text = path.read_text()
    compile(text, path.name, "exec")
    assert 'device="cuda"' in text and "fp8parity" not in text
