"""Tables in a terminal: the verdict first, then the gap. They fit 80 columns, and have colors only where the terminal shows them."""

from __future__ import annotations

import io
import re
from functools import partial

import pytest
import reports
import two_sides
from fp8parity import report as formats
from fp8parity.judging import policy
from fp8parity.judging.compare import compare
from fp8parity.judging.references import Goldens
from fp8parity.report import comparison, escape, table, terminal
from fp8parity.report.blocks import Inline, Table, Tone
from fp8parity.report.summary import Report
from fp8parity.report.terminal import Screen
from sessions import DAY
from two_sides import TOML

ESCAPE = re.compile(r"\x1b\[[\d;]*m")
LONGEST = ("ao-rowwise-gw-hp", "te-current", "te-nvfp4")


@pytest.fixture(scope="module")
def report() -> Report:
    return reports.report(
        recipes=LONGEST, models=("tiny", "small"), gaps={("te-current", "tiny"): 0.02, ("te-nvfp4", "small"): 0.00499}
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_of_a_gate_fits(report, width):
    text = table(report, Screen(width, attached=True))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:3] == ["verdict", "gap", "to"]
    assert ("seeds" in lines[0]) == (width == 120)
    rows = lines[1 : 1 + len(report.rows)]
    assert [row.split()[0] for row in rows] == [r.status for r in report.rows]
    assert all(r.gap in row and r.recipe in row for r, row in zip(report.rows, rows, strict=True))
    assert " ".join(" ".join(lines[1 + len(rows) :]).split()) == report.sentence


def test_a_large_table_shows_red_cells_first(report, monkeypatch):
    red = [row for row in report.rows if row.status == "fail"]
    monkeypatch.setattr(formats, "ROWS", len(red) + 1)
    lines = table(report, Screen(120, attached=True)).splitlines()
    assert [line.split()[0] for line in lines[1 : 2 + len(red)]].count("fail") == len(red) > 0
    assert f"The table shows {len(red) + 1} of {len(report.rows)} cells, what is red first." in " ".join(lines)


def test_colors_only_where_the_terminal_has_them(report):
    colored, plain = (table(report, Screen(80, color=color, attached=True)) for color in (True, False))
    assert "\x1b" not in plain
    assert [line.rstrip() for line in ESCAPE.sub("", colored).splitlines()] == plain.splitlines()
    for row, line in zip(report.rows, colored.splitlines()[1:], strict=False):
        assert re.match(r"\x1b\[1;31m" if row.status == "fail" else r"\x1b\[\d+m", line), line


def test_a_file_has_a_width_of_its_own_and_whole_sentences(report, monkeypatch):
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    screen = Screen.of(io.StringIO())
    assert screen == Screen(terminal.WIDTH, color=False, attached=False)
    assert report.sentence in table(report, screen).splitlines()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    assert Screen.of(Terminal()) == Screen(80, color=True, attached=True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert Screen.of(Terminal()) == Screen(80, color=False, attached=True)


def test_text_of_a_record_stays_text_in_a_colored_table(report):
    evil = "::error ::x\x1b[2J##[error]"
    shown = Table("t", ("result", "cell"), [(Inline(evil, tone=Tone.BAD), evil)])
    text = terminal.text(Screen(30, color=True, attached=True), shown)
    assert not re.search(r"::|##\[", text)
    assert "\x1b" not in ESCAPE.sub("", text)
    assert escape.cell("a::b") == "a: :b"


@pytest.fixture
def compared(trajectory, tmp_path):
    runs = partial(two_sides.runs, trajectory)
    (tmp_path / "policy.toml").write_text(TOML)
    rules = policy.load(tmp_path, DAY)
    return lambda **new: compare(runs(), runs("2.13.0", **new), Goldens({}), rules)


@pytest.mark.parametrize(
    ("new", "first"), [({"recipe": 0.02}, "recipe worse"), ({"recipe": -0.02}, "recipe better"), ({}, "unchanged")]
)
@pytest.mark.parametrize("width", [80, 120, 190])
def test_a_comparison_fits(compared, new, first, width):
    found = compared(**new)
    text = comparison.text(found, Screen(width, attached=True))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    [head] = [i for i, line in enumerate(lines) if line.startswith("result ")]
    assert lines[head + 1].startswith(f"{first} ")
    assert " ".join(" ".join(lines[:head]).split()) == found.sentence
    assert ("OLD" in lines[head]) == (width == 190)
