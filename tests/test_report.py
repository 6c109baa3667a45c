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
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import RENDERERS, plots, view, write
from fp8parity.report.sentence import sentence
from sessions import GOLDEN
from verdicts import verdict


class TestSentence:
    def test_a_failing_gap_is_named_with_margin_and_mover(self, faulty):
        gap = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert 0.0078 < gap.mean < 0.0084
        first = (
            f"Refuse: te-current on mini fails (gap {gap.gap}, margin 0.50%); the recipe changed, not the framework."
        )
        assert faulty.sentence.startswith(f"{first} 2 of 22 checks are not green;")
        assert faulty.sentence.endswith("also te-nvfp4 on mini (fail).")
        assert not faulty.green

    @pytest.mark.parametrize(
        ("statuses", "problems", "green"),
        [
            (["pass", "pass"], [], True),
            (["pass", "improved"], [], True),
            (["pass"], ["required cell x was skipped: y"], False),
            ([], [], False),
            *(
                (["pass", status], [], False)
                for status in ("fail", "inconclusive", "drift", "no-golden", "stale", "error")
            ),
        ],
    )
    def test_the_report_has_it_and_says_whether_it_is_green(self, statuses, problems, green):
        """tests/test_sentence.py has its words."""
        given = [verdict(status) for status in statuses]
        made = view.build(given, {}, problems, "m")
        assert (made.sentence, made.green) == (sentence(given, problems), green)
        assert made.sentence.startswith("Accept: " if green else "Refuse: ")

    def test_what_rules_alone_judged_is_listed(self):
        bare = verdict("pass", detail=NumericsDetail(unmeasured=["no numbers of A"]))
        made = view.build([verdict("pass"), bare], {}, [], "m")
        assert made.green
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
        assert 'known fail until 2999-01-01: <a href="https://example.org/7" rel="noopener">' in RENDERERS[".html"](
            made
        )

    def test_without_one_there_is_no_section(self, faulty):
        assert faulty.known == []
        assert "Known failures" not in RENDERERS[".html"](faulty) + RENDERERS[".md"](faulty)


class TestSize:
    def test_a_large_session_stays_under_5_mb(self, tmp_path):
        made = reports.report(models=reports.MODELS, steps=300, speeds=True)
        assert sum(len(c.gaps) for v in made.curves for c in v.curves) == 10 * 5 * 3
        for suffix, least, most in (
            (".html", 1_500_000, 5_000_000),
            (".md", 5_000, 200_000),
            (".json", 100_000, 5_000_000),
        ):
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

    @pytest.mark.parametrize(
        "words", ["* needs sm_100: te-mxfp8-tiny-native, te-nvfp4-tiny-native", "1.43x (70B), 1.53x (405B)"]
    )
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
    assert (
        main(["judge", str(tmp_path / "records"), "--golden-dir", str(GOLDEN), "--report", str(tmp_path / "r.pdf")])
        == 2
    )
    assert "use .md or .html or .json" in capsys.readouterr().err


def test_infinite_and_missing_values_have_no_number():
    assert plots.percent(None) == 0
    bars = plots.error([(-math.inf, 0.0, math.inf), (0.0, 0.01, 0.03)], "red", 100)
    assert (bars["array"], bars["arrayminus"]) == ([None, 2.0], [None, 1.0])
