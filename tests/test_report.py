"""The report without a browser: the sentence, the numbers in every format, known failures, and its size."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import reports
from fp8parity.cli import main
from fp8parity.judging.verdict import NumericsDetail
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import RENDERERS, plots, view, write
from sessions import GOLDEN
from verdicts import verdict


class TestSentence:
    def test_a_failing_gap_is_named_with_margin_and_mover(self, faulty):
        gap = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert 0.0078 < gap.mean < 0.0084
        first = f"Refuse: te-current on mini fails (gap {gap.gap}, margin 0.50%); the recipe moved, not the framework."
        assert faulty.sentence.startswith(f"{first} 2 of 22 checks are not green;")
        assert faulty.sentence.endswith("also te-nvfp4 on mini (fail).")
        assert not faulty.green

    def test_all_green(self):
        made = view.build([verdict("pass"), verdict("pass")], {}, [], "m")
        assert (made.sentence, made.green) == ("Accept: all 2 checks are green.", True)

    def test_an_improvement_is_shown(self):
        assert view.build([verdict("improved")], {}, [], "m").sentence.endswith("by more than the margin: te-current on tiny.")

    @pytest.mark.parametrize("status", ["fail", "inconclusive", "drift", "no-golden", "stale", "error"])
    def test_each_red_status_refuses_with_its_reason(self, status):
        made = view.build([verdict("pass"), verdict(status)], {}, [], "m")
        assert made.sentence.startswith("Refuse: te-current on tiny ")
        assert "(gemm: 3 of 21 numbers are outside their bounds)" in made.sentence
        assert not made.green

    def test_green_checks_do_not_outweigh_a_problem(self):
        made = view.build([verdict("pass")], {}, ["required cell x was skipped: y"], "m")
        assert (made.sentence, made.green) == ("Refuse: the only check that ran is green, but required cell x was skipped: y.", False)

    def test_nothing_checked_is_a_refusal(self):
        assert view.build([], {}, [], "m").sentence == "Refuse: nothing was checked."
        assert not view.build([], {}, [], "m").green

    def test_many_are_counted(self):
        many = [verdict("fail", cell=Cell(model="tiny", recipe=f"r{i}", execution=Execution.NATIVE, corpus="c")) for i in range(9)]
        assert view.build(many, {}, [], "m").sentence.endswith("r4 on tiny (fail) and 4 more cells.")

    def test_one_more_is_one_cell(self):
        many = [verdict("fail", cell=Cell(model="tiny", recipe=f"r{i}", execution=Execution.NATIVE, corpus="c")) for i in range(6)]
        assert view.build(many, {}, [], "m").sentence.endswith("r4 on tiny (fail) and 1 more cell.")

    def test_what_could_not_be_checked_is_not_called_a_failure(self):
        assert "te-current on tiny could not be checked (" in view.build([verdict("error")], {}, [], "m").sentence

    def test_executions_of_one_recipe_are_two_cells(self):
        cells = [Cell(model="mini", recipe="te-block", execution=e, corpus="c") for e in (Execution.NATIVE, Execution.FUSED)]
        assert view.build([verdict("fail", cell=c) for c in cells], {}, [], "m").sentence.endswith("; also te-block fused on mini (fail).")

    def test_what_rules_alone_judged_is_counted(self):
        bare = verdict("pass", detail=NumericsDetail(unmeasured=["no numbers of A"]))
        made = view.build([verdict("pass"), bare], {}, [], "m")
        end = "; 1 of them judged in part by rules alone, because measured numbers are missing."
        assert (made.sentence, made.green) == (f"Accept: all 2 checks are green{end}", True)
        assert made.unmeasured == ["no numbers of A (1 cell, first te-current-tiny-native)"]


class TestKnownFailures:
    HEADLINE = "known fail until 2999-01-01: https://example.org/7 (the scale is applied twice); 50% off"

    @pytest.fixture
    def made(self) -> view.Report:
        return view.build([verdict("known", headline=self.HEADLINE), verdict("pass", check="gemm")], {}, [], "m")

    def test_they_are_green_and_in_the_sentence(self, made):
        assert made.green
        assert made.sentence == "Accept: all 2 checks are green; known failures among them: te-current on tiny."
        assert made.failures == []
        assert made.rows[0].status == "known"

    @pytest.mark.parametrize("ending", [".html", ".md", ".json"])
    def test_every_format_shows_them(self, made, ending):
        assert self.HEADLINE in re.sub("</?a[^>]*>", "", RENDERERS[ending](made))

    def test_the_issue_is_a_link(self, made):
        assert 'known fail until 2999-01-01: <a href="https://example.org/7" rel="noopener">' in RENDERERS[".html"](made)

    def test_without_one_there_is_no_section(self, faulty):
        assert faulty.known == []
        assert "Known failures" not in RENDERERS[".html"](faulty) + RENDERERS[".md"](faulty)


class TestSize:
    def test_a_large_session_stays_under_5_mb(self, tmp_path):
        made = reports.report(models=reports.MODELS, steps=300, speeds=True)
        assert sum(len(c.gaps) for v in made.curves for c in v.curves) == 10 * 5 * 3
        for suffix, least, most in ((".html", 1_500_000, 5_000_000), (".md", 5_000, 200_000), (".json", 100_000, 5_000_000)):
            write(made, tmp_path / f"r{suffix}")
            assert least < (tmp_path / f"r{suffix}").stat().st_size < most

    def test_plotly_is_the_version_that_was_chosen(self):
        static = Path(view.__file__).parent / "static"
        assert "plotly.js (cartesian - minified) v4.1.1" in (static / "plotly-cartesian.min.js").read_text()[:200]
        assert "MIT License" in (static / "plotly-LICENSE.txt").read_text()


class TestMarkdown:
    def test_the_first_line_is_the_verdict(self, faulty):
        assert RENDERERS[".md"](faulty).splitlines()[2].startswith(f"**{faulty.sentence}**")

    def test_the_same_numbers(self, faulty):
        text = RENDERERS[".md"](faulty)
        row = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert f"| te-current | mini | native | {row.gap} | 0.50% | 3 | - | fail |" in text
        assert f"| te-current native | pass, {faulty.matrix.rows[1][1][0].gap} | fail, {row.gap} |" in text

    @pytest.mark.parametrize("words", ["* needs sm_100: te-mxfp8-tiny-native, te-nvfp4-tiny-native", "1.43x (70B), 1.53x (405B)"])
    def test_what_did_not_run_and_claims_are_there(self, faulty, words):
        assert words in RENDERERS[".md"](faulty)

    def test_rows_have_a_field_a_column(self, faulty):
        lines = RENDERERS[".md"](faulty).splitlines()
        assert {line.count("|") for line in lines if line.startswith("|") and "mini | native" in line} == {9}

    def test_json_has_the_view(self, faulty):
        data = json.loads(RENDERERS[".json"](faulty))
        assert data["sentence"] == faulty.sentence
        assert len(data["curves"]) == 2


def test_judge_writes_each_format(tmp_path, capsys):
    """From records on disk to a page, with a damaged loss among them."""
    _, given = reports.session(recipes=("te-current",))
    for r in given.records:
        write_json(tmp_path / "records" / name_of(r), r)
    code = main(["judge", str(tmp_path / "records"), "--golden-dir", str(GOLDEN), "--report", str(tmp_path / "r.html")])
    assert code == 1  # the made-up runs are stale against the real golden
    text = (tmp_path / "r.html").read_text()
    assert "Refuse: " in text
    assert "differ from the golden" in text
    assert "loss-0" in text


def test_judge_names_the_formats_that_there_are(tmp_path, capsys):
    made = reports.layers("tiny", "te-current")
    write_json(tmp_path / "records" / name_of(made), made)
    assert main(["judge", str(tmp_path / "records"), "--golden-dir", str(GOLDEN), "--report", str(tmp_path / "r.pdf")]) == 2
    assert "use .md or .html or .json" in capsys.readouterr().err


def test_infinite_and_missing_values_have_no_number():
    assert plots.percent(None) == 0
    bars = plots.error([(-math.inf, 0.0, math.inf), (0.0, 0.01, 0.03)], "red", 100)
    assert (bars["array"], bars["arrayminus"]) == ([None, 2.0], [None, 1.0])
