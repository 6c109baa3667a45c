"""The HTML report without a browser: structure, links, tables, and text that tries to be markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import reports
from fp8parity.judging.verdict import LossDetail
from fp8parity.records.cell import Cell, Execution
from fp8parity.report import RENDERERS
from fp8parity.report.summary import Evidence, Report
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
        for attrs in page.of("span"):
            if "t-bad" in (attrs.get("class") or ""):
                break
        else:
            pytest.fail("no failing status on the page")

    def test_green_cells_are_folded_and_red_ones_open(self, page, faulty):
        """Outside of <details> stand the messages and the cells that are red, and no other cell."""
        open_text = re.sub(r"(?s)<details>.*?</details>", "", RENDERERS[".html"](faulty))
        cells = re.findall(r'<h3 id="cell-[^"]*">([^:]*):', open_text)
        assert sorted(cells) == ["te-current native, mini", "te-nvfp4 native, mini"]
        assert len(re.findall(r'<h3 id="cell-', RENDERERS[".html"](faulty))) == len(faulty.rows) == 8
        assert open_text.count("<pre") == len(faulty.failures) == 2


@pytest.fixture(scope="module")
def hostile() -> Report:
    """A name from a record, in every place where one is shown."""
    _, given = reports.session(recipes=("te-current",))
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus=HOSTILE)
    seeds = [
        r.model_copy(update={"cell": cell, "provenance": reports.provenance(device=HOSTILE)}) for r in given.records
    ]
    detail = LossDetail(margin=0.005, seeds=[0, 1, 2], unmeasured=[HOSTILE])
    planted = verdict("fail", cell=cell, headline=HOSTILE, lines=[(HOSTILE, HOSTILE)], detail=detail)
    evidence = Evidence(records=seeds, policy=given.policy)
    made = Report([planted], {HOSTILE: HOSTILE}, [HOSTILE], HOSTILE, evidence, [HOSTILE])
    assert len(reports.plots(made)) >= 3 and made.unmeasured and made.unused
    return made


class TestHostileText:
    def test_it_stays_text_in_html(self, hostile):
        text = RENDERERS[".html"](hostile)
        page = Page(text)
        assert "<script>alert" not in text
        assert len(page.of("script")) == 2 + len(reports.plots(hostile))
        assert text.count("</style>") == 1

    def test_it_stays_text_in_markdown(self, hostile):
        outside_code = re.sub("(?m:^    .*$)|(?s:```.*?```)", "", RENDERERS[".md"](hostile))
        assert "<script>alert" not in outside_code
        assert "&lt;script>alert(1)" in outside_code  # without its "<" it opens nothing
