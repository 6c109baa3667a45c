"""The README's table is the one that the committed record set gives."""

from __future__ import annotations

import datetime
import runpy
from functools import cache
from pathlib import Path

import pytest
from documents import blocks
from fp8parity.cli import main
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import name_of, write_json

ROOT = Path(__file__).parents[1]
MODULE = runpy.run_path(str(ROOT / "benchmarks" / "readme_table.py"))
RECORDS = ROOT / "golden" / "records"
DAY = datetime.date(2026, 11, 22)
"""Known failures end, but the README's tables stay."""


@cache
def report(*names: str):
    return MODULE["report"](DAY, *(RECORDS / f"{name}.zip" for name in names))


def shown(lines, text):
    """Whether these lines stand in the text, one after the other."""
    return "\n".join(lines) in text


TABLES = [
    ("h200", "gaps", 13, "README.md"),
    ("h200-variants h200-emulated-variants", "gaps", 14, "README.md"),
    ("h200-throughput", "speeds", 9, "README.md"),
    ("h100", "gaps", 10, "golden/README.md"),
    ("h100-variants", "gaps", 10, "golden/README.md"),
    ("h100-throughput", "speeds", 9, "golden/README.md"),
    ("h100-emulated-variants", "gaps", 5, "golden/README.md"),
    ("h200-experts", "gaps", 6, "docs/recipes.md"),
    ("h200-small-moe", "gaps", 5, "docs/recipes.md"),
]
"""Record sets, their table, the rows, and the page that shows it."""


@pytest.mark.parametrize(("names", "table", "rows", "page"), TABLES)
def test_table_is_of_the_records(names, table, rows, page):
    found = report(*names.split())
    lines = MODULE[table](found)
    assert len(lines) == 2 + rows
    assert shown(lines, (ROOT / page).read_text())
    assert found.green


def test_the_counts_are_those_of_the_records():
    text = (ROOT / "README.md").read_text()
    assert (
        f"All {len(report('h200').verdicts)} checks of the H200s are green, and all {len(report('h100').verdicts)} of the H100s"
        in text
    )
    variants = [len(report(f"{gpu}-variants{part}").verdicts) for gpu in ("h200", "h100") for part in ("", "-numerics")]
    assert "So are {} and {} of the variants on H200s, and {} and {} on H100s.".format(*variants) in text
    gates = {len(report(f"{gpu}-gate").verdicts) for gpu in ("h200", "h100")}
    assert [f"{n} checks each" in text for n in gates] == [True]


def test_the_first_table_is_of_its_records(tmp_path, capsys, monkeypatch):
    """The rows of the first command: these records hold a third seed, which no cell needs."""
    monkeypatch.setenv("COLUMNS", "160")
    text = (ROOT / "README.md").read_text()
    for record in sets.load([RECORDS / "micro-xeon.zip"]):
        if isinstance(record, Trajectory) and record.seed < 2:
            write_json(tmp_path / name_of(record), record)
    assert main(["judge", str(tmp_path), "--golden-dir", str(ROOT / "golden")]) == 0
    rows = [line.rstrip() for line in capsys.readouterr().out.splitlines() if " micro " in line]
    assert len(rows) == 10
    assert [row for row in rows if row not in text.splitlines()] == []


def test_a_number_that_moved_is_seen():
    text, lines = (ROOT / "README.md").read_text(), MODULE["speeds"](report("h200-throughput"))
    moved = [line.replace("1.13x", "1.23x") for line in lines]
    assert moved != lines and not shown(moved, text)


NOT_RUN = {("ao-rowwise", "base"), ("ao-rowwise", "1b"), ("ao-rowwise-gw-hp", "1b")}
"""Native cells that neither set holds. The README names them."""


def test_every_native_recipe_is_judged_at_every_size():
    """The loss at each size on one of the two GPUs; gradients and layers up to small; speed where a step is more than launches."""
    recipes = ("te-delayed", "te-current", "te-block", "ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp")
    checks: dict[tuple[str, str], set[str]] = {}
    for v in (v for names, *_ in TABLES for v in report(*names.split()).verdicts if v.cell.execution == "native"):
        checks.setdefault((v.cell.recipe, v.cell.model), set()).add(v.check)
    for recipe in recipes:
        for model in ("tiny", "mini", "small", "base", "1b"):
            wanted = {"loss parity"} - ({"loss parity"} if (recipe, model) in NOT_RUN else set())
            wanted |= {"gradients", "layers", "modes"} if model in ("tiny", "mini", "small") else set()
            wanted |= {"throughput"} if model in ("small", "base", "1b") else set()
            assert wanted <= checks[recipe, model], (recipe, model)


def test_it_is_short_and_shows_a_small_picture():
    text, picture = (ROOT / "README.md").read_text(), ROOT / "docs" / "report.png"
    assert 100 < len(text.splitlines()) <= 200
    assert "(docs/report.png)" in text
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and 10_000 < picture.stat().st_size < 100_000


def test_the_reproducers_of_the_findings_are_whole_programs():
    """Each can be pasted as it is: it compiles, names a GPU, and imports nothing of this project."""
    found = [
        b.text for b in blocks(ROOT / "docs" / "findings.md") if b.language == "python" and b.text.startswith('"""')
    ]
    assert len(found) == 2
    for text in found:
        compile(text, "findings.md", "exec")
        assert 'device="cuda"' in text and "fp8parity" not in text and len(text.splitlines()) < 60
    assert "tl.debug_barrier()" in found[0] and "rowwise_with_gw_hp" in found[1]
