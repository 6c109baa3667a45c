"""The HTML report without a browser, and tables in a terminal: structure, width, colors, hostile text."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import pytest
import reports
import two_sides
from fp8parity import report as formats
from fp8parity.judging import policy
from fp8parity.judging.compare import compare
from fp8parity.judging.references import Goldens
from fp8parity.judging.verdict import LossDetail
from fp8parity.records.cell import Cell, Execution
from fp8parity.report import RENDERERS, comparison, escape, table, terminal
from fp8parity.report.blocks import Inline, Table, Tone
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report
from fp8parity.report.terminal import Screen
from sessions import DAY
from two_sides import TOML
from verdicts import verdict

VOID = {"meta", "link", "input", "br"}
HOSTILE = "<script>alert(1)</script>|`\"'--></style>"


class Page(HTMLParser):
    """Tags in order with their attributes and text; complains of what is not nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.texts.setdefault(tag, []).append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        for tag in set(self.open):
            self.texts[tag][-1] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(faulty) -> Page:
    return Page(RENDERERS[".html"](faulty))


class TestPage:
    def test_the_first_sentence_is_the_verdict(self, page, faulty):
        assert page.of("html") == [{"lang": "en"}]
        assert page.texts["p"][0] == faulty.sentence
        assert page.texts["title"] == ["Refuse - FP8 parity report"]

    def test_nothing_is_fetched(self, page):
        for tag, attrs in page.tags:
            for name in ("src", "href", "srcset", "data"):
                value = attrs.get(name)
                assert (
                    value is None or value.startswith(("#", "data:")) or (tag == "a" and value.startswith("https://"))
                ), (tag, attrs)
        policy = next(m["content"] for m in page.of("meta") if m.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none';")
        assert "'unsafe-inline'" not in policy.split("script-src")[1]
        assert policy.count("'sha256-") == 2

    def test_links_lead_somewhere_and_ids_are_unique(self, page):
        ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
        assert len(ids) == len(set(ids))
        targets = {a["href"][1:] for a in page.of("a") if a["href"].startswith("#")}
        assert len(targets) > 15
        assert targets <= set(ids)

    def test_status_is_never_color_alone(self, page):
        assert len(re.findall("✓ pass", "".join(page.texts["td"]))) == 6 + 6 + 6  # matrix, gaps, speeds
        assert any("t-bad" in (attrs.get("class") or "") for attrs in page.of("span"))

    def test_green_cells_are_folded_and_red_ones_open(self, page, faulty):
        """Outside of <details> stand the messages and the cells that are red, and no other cell."""
        open_text = re.sub(r"(?s)<details>.*?</details>", "", RENDERERS[".html"](faulty))
        cells = re.findall(r'<h3 id="cell-[^"]*">([^:]*):', open_text)
        assert sorted(cells) == ["te-current native, mini", "te-nvfp4 native, mini"]
        assert len(re.findall(r'<h3 id="cell-', RENDERERS[".html"](faulty))) == len(faulty.rows) == 8
        assert all(f"<h3>{v.title}</h3>" in open_text for v in faulty.red) and len(faulty.red) == 2


@pytest.fixture(scope="module")
def hostile() -> Report:
    """A name from a record, in every place where one is shown."""
    verdicts, given = reports.session(recipes=("te-current",))
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus=HOSTILE)
    seeds = [
        r.model_copy(update={"cell": cell, "provenance": reports.provenance(device=HOSTILE)}) for r in given.records
    ]
    detail = LossDetail(margin=0.005, seeds=[0, 1, 2], unmeasured=[HOSTILE])
    planted = verdict("fail", cell=cell, headline=HOSTILE, lines=[(HOSTILE, HOSTILE)], detail=detail)
    evidence = Evidence(records=seeds, policy=given.policy)
    rows = [r for v in verdicts if v.check == "layers" for r in v.rows]
    named = verdict("fail", cell=cell, check="layers", rows=[replace(r, cell=cell, why=HOSTILE) for r in rows])
    made = Report([planted, named], {HOSTILE: HOSTILE}, [HOSTILE], HOSTILE, evidence)
    assert len(reports.plots(made)) >= 3 and made.unmeasured
    return made


def test_hostile_text_stays_text_on_the_page(hostile):
    text = RENDERERS[".html"](hostile)
    page = Page(text)
    assert "<script>alert" not in text
    assert len(page.of("script")) == 2 + len(reports.plots(hostile))
    assert text.count("</style>") == 1


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
    assert "margin" in lines[0] and "seeds" in lines[0]
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
    ("new", "first", "width"),
    [({"recipe": 0.02}, "recipe worse", 80), ({"recipe": -0.02}, "recipe better", 120), ({}, "unchanged", 190)],
)
def test_a_comparison_fits(compared, new, first, width):
    found = compared(**new)
    text = comparison.text(found, Screen(width, attached=True))
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    [head] = [i for i, line in enumerate(lines) if line.startswith("result ")]
    assert lines[head + 1].startswith(f"{first} ")
    assert " ".join(" ".join(lines[:head]).split()) == found.sentence
    assert ("OLD" in lines[head]) == (width == 190)
