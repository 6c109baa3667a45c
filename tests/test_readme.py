"""The README's table is the one that the committed record set gives."""

from __future__ import annotations

import datetime
import runpy
from pathlib import Path

import pytest
from fp8parity.cli import main

ROOT = Path(__file__).parents[1]
MODULE = runpy.run_path(str(ROOT / "benchmarks" / "readme_table.py"))
RECORDS = ROOT / "golden" / "records" / "h200.zip"


@pytest.fixture(scope="module")
def report():
    return MODULE["report"](RECORDS, datetime.date(2026, 11, 21))  # known failures end, the README's table stays


def shown(lines, text):
    """Whether these lines stand in the text, one after the other."""
    return "\n".join(lines) in text


def test_table_is_of_the_records(report):
    text = (ROOT / "README.md").read_text()
    lines = MODULE["table"](report)
    assert len(lines) == 2 + 13
    assert shown(lines, text)
    assert f"All {len(report.verdicts)} of its checks are green" in text
    assert report.green


def test_the_first_table_is_of_its_records(capsys):
    """The rows of the first command, which stored these records."""
    text = (ROOT / "README.md").read_text()
    assert main(["judge", str(RECORDS.with_name("micro-xeon.zip")), "--golden-dir", str(ROOT / "golden")]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if " micro " in line]
    assert len(rows) == 10
    assert [row for row in rows if row not in text.splitlines()] == []


def test_a_number_that_moved_is_seen(report):
    text = (ROOT / "README.md").read_text()
    lines = MODULE["table"](report)
    moved = [line.replace("1.15x", "1.25x") for line in lines]
    assert moved != lines and not shown(moved, text)


def test_every_native_recipe_is_judged_at_every_size(report):
    """Gap, SNR, dispatch at each size; speed and memory where a step is more than launches."""
    recipes = ("te-delayed", "te-current", "te-block", "ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp")
    checks: dict[tuple[str, str], set[str]] = {}
    for v in report.verdicts:
        if v.cell.execution == "native":
            checks.setdefault((v.cell.recipe, v.cell.model), set()).add(v.check)
    for recipe in recipes:
        for model in ("tiny", "mini", "small", "base", "1b"):
            wanted = {"loss parity", "gradients", "dispatch"} | ({"throughput"} if model in ("small", "base", "1b") else set())
            assert wanted <= checks[recipe, model], (recipe, model)
