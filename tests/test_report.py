"""The report without a browser: whether it is green, the numbers in every format, its origin, its commands and its size."""

from __future__ import annotations

import json
import re

import pytest
import reports
from fp8parity import report
from fp8parity.judging.table import furthest
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.report import RENDERERS
from fp8parity.report.commands import command
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import COLUMNS, LIMITS, Report
from verdicts import verdict

HEADLINE = "known fail until 2999-01-01: https://example.org/7 (the scale is applied twice); 50% off"


def test_a_failing_gap_is_named_with_margin_and_blame(faulty):
    gap = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
    assert 0.0078 < gap.mean < 0.0084
    first = f"Refuse: te-current on mini fails (gap {gap.gap}, margin 0.50%); the recipe changed, not the framework."
    assert faulty.sentence.startswith(f"{first} 2 of 22 checks are not green;")
    assert not faulty.green


@pytest.mark.parametrize(
    ("statuses", "problems", "green"),
    [
        (["pass", "pass"], [], True),
        (["pass", "improved"], [], True),
        (["pass", "known"], [], True),
        (["pass"], ["required cell x was skipped: y"], False),
        ([], [], False),
        *((["pass", s], [], False) for s in ("fail", "inconclusive", "drift", "no-golden", "stale", "error")),
    ],
)
def test_a_report_is_green_if_all_verdicts_are_and_nothing_is_wrong(statuses, problems, green):
    made = Report([verdict(status) for status in statuses], {}, problems, "m")
    assert made.green is green
    assert made.sentence.startswith("Accept: " if green else "Refuse: ")


@pytest.mark.parametrize(("status", "advised"), [("fail", True), ("drift", True), ("error", False)])
def test_message_of_a_change_says_what_to_do_next(status, advised):
    [said] = Report([verdict(status)], {}, [], "m").failures
    assert ("next:" in said) is advised and "repeat:" in said


@pytest.mark.parametrize("ending", [".html", ".md", ".json"])
def test_every_format_shows_known_failures(ending):
    made = Report([verdict("known", headline=HEADLINE), verdict("pass", check="gemm")], {}, [], "m")
    assert (made.green, made.failures, made.rows[0].status) == (True, [], "known")
    assert HEADLINE in re.sub(r"</?a[^>]*>|\[(?=https)|\]\(https[^)]*\)", "", RENDERERS[ending](made))


def test_all_formats_render_one_document(monkeypatch):
    made = Report([verdict("pass")], {}, [], "m")
    built: list[Report] = []
    monkeypatch.setattr(report, "SECTIONS", [lambda shown, page: built.append(shown)])
    for render in RENDERERS.values():
        render(made)
    assert built == [made]


class TestFormats:
    def test_markdown_begins_with_the_verdict_and_has_a_row_a_cell(self, faulty):
        text = RENDERERS[".md"](faulty)
        assert text.splitlines()[2] == f"**{faulty.sentence}**"
        row = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert f"| te-current | mini | native | {row.gap} | 0.50% | 3 | - | fail | {row.cost} |" in text
        assert {line.count("|") for line in text.splitlines() if line.startswith("|") and "mini | native" in line} == {
            10
        }
        assert "* needs sm_100: te-mxfp8-tiny-native, te-nvfp4-tiny-native" in text

    def test_json_has_rows_verdicts_and_the_tables_of_all_sections(self, faulty):
        data = json.loads(RENDERERS[".json"](faulty))
        assert (data["sentence"], data["green"], data["machine"]) == (faulty.sentence, False, "h100 (sm_90)")
        assert [r["mean"] for r in data["rows"]] == [r.mean for r in faulty.rows]
        read = [Verdict.model_validate(v) for v in data["verdicts"]]
        assert read == [v.model_copy(update={"rows": furthest(v.rows)}) for v in faulty.verdicts]
        names = [s["name"] for s in data["sections"]]
        assert {"matrix", "gaps", "snr", "losses", "cells", "not-run", "provenance"} <= set(names)
        assert '"Plot"' not in RENDERERS[".json"](faulty) and "Losses of mini" in RENDERERS[".json"](faulty)

    @pytest.mark.slow
    def test_a_large_session_stays_small(self):
        made = reports.report(models=reports.MODELS, steps=300, speeds=True)
        assert all(len(RENDERERS[suffix](made)) < 5_000_000 for suffix in (".html", ".md"))
        assert len(RENDERERS[".json"](made)) < 12_000_000  # it holds each judged number


class TestLargeReports:
    def test_a_page_shows_what_is_red_and_says_what_it_leaves_out(self):
        names = tuple(f"te-current-plugin{i}" for i in range(LIMITS[COLUMNS] + 20))
        large = reports.report(recipes=names, gaps={(names[-1], "tiny"): 0.0081})
        most = LIMITS[COLUMNS]
        text = RENDERERS[".html"](large)
        line = f"This page shows {most} of {most + 21} curves and columns, what is red first. A .json report holds all of them."
        assert line in text and large.sentence in text
        [losses] = re.findall(r"(?s)Losses of tiny.*?</thead>", text)
        assert losses.count('<th scope="col">') <= most + 5 and f"plugin{most + 19} native" in losses
        assert "This page shows" not in RENDERERS[".json"](large)


OWN = Evidence(options=["--parity-model-factory", "mine:make", "--parity-recipe", "x", "--parity-golden-dir", "a b"])


@pytest.mark.parametrize(
    ("check", "fields", "evidence", "words"),
    [
        ("loss parity", {"recipe": "bf16"}, Evidence(), "suites/convergence --recipe bf16 --model tiny"),
        ("loss parity", {"corpus": "text:a b"}, Evidence(), "suites/convergence {} --corpus 'text:a b'"),
        ("sharded", {}, Evidence(), "suites/distributed {}"),
        ("sharded", {"ranks": 2}, Evidence(), "suites/distributed {} -k x2"),
        ("gemm", {}, OWN, "suites/numerics {} --parity-model-factory mine:make --parity-golden-dir 'a b'"),
        ("a plugin's", {}, Evidence(), "{}"),  # whose test may be anywhere in the user's folder
    ],
)
def test_command_repeats_a_verdict(check, fields, evidence, words):
    made = Cell(**{"model": "tiny", "recipe": "te-block", "execution": Execution.FUSED} | fields)
    found = command([verdict("pass", cell=made, check=check)], evidence)
    assert found == f"pytest {words.format('--recipe te-block --model tiny --execution fused')}"


def test_command_begins_with_the_settings_of_the_runs():
    verdicts, given = reports.session(recipes=("te-current",))
    assert command([verdicts[-1]], given).startswith("NVTE_X='1 2' pytest suites/")
