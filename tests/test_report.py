"""The report without a browser: the sentence, the numbers, the structure of the page, hostile text, and its size."""

from __future__ import annotations

import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import reports
from fp8parity.cli import main
from fp8parity.judge import Verdict
from fp8parity.record import CellKey
from fp8parity.report import RENDERERS, claims, evidence, figures, origin, view, write
from fp8parity.storage import file_name, write_json

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


def verdict(status: str, **changes: object) -> Verdict:
    cell = CellKey(model="tiny", recipe="te-current", execution="native", corpus="synthetic")
    return Verdict(cell=cell, check="gemm", status=status, headline="3 of 21 numbers are outside their bounds").model_copy(update=changes)


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

    def test_green_checks_do_not_outweigh_a_complaint(self):
        made = view.build([verdict("pass")], {}, ["required cell x was skipped: y"], "m")
        assert (made.sentence, made.green) == ("Refuse: all 1 checks that ran are green, but required cell x was skipped: y.", False)
        assert view.build([], {}, [], "m").sentence == "Refuse: nothing was checked."
        assert not view.build([], {}, [], "m").green

    def test_many_are_counted(self):
        many = [verdict("fail", cell=CellKey(model="tiny", recipe=f"r{i}", execution="native", corpus="c")) for i in range(9)]
        assert view.build(many, {}, [], "m").sentence.endswith("r4 on tiny (fail) and 4 more cells.")

    def test_executions_of_one_recipe_are_two_cells(self):
        cells = [CellKey(model="mini", recipe="te-block", execution=e, corpus="c") for e in ("native", "fused")]
        assert view.build([verdict("fail", cell=c) for c in cells], {}, [], "m").sentence.endswith("; also te-block fused on mini (fail).")


class TestPage:
    def test_the_first_sentence_is_the_verdict(self, page, faulty):
        assert page.of("html") == [{"lang": "en"}]
        assert page.texts["p"][0] == faulty.sentence
        assert page.texts["title"] == ["Refuse - FP8 parity report"]

    def test_nothing_is_fetched(self, page):
        for tag, attrs in page.tags:
            for name in ("src", "href", "srcset", "data"):
                value = attrs.get(name)
                assert value is None or value.startswith(("#", "data:")) or (tag == "a" and value.startswith("https://")), (tag, attrs)
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

    def test_headings_descend_without_a_gap(self, page):
        levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in itertools.pairwise(levels))

    def test_tables_have_captions_and_scopes(self, page):
        tables = len(page.of("table"))
        assert tables >= 8
        assert len(page.of("caption")) == tables
        assert {a.get("scope") for a in page.of("th")} == {"row", "col"}
        boxes = [a for a in page.of("div") if a.get("class") == "box"]
        assert len(boxes) == tables
        assert all(a["tabindex"] == "0" and a["role"] == "region" and a["aria-label"] for a in boxes)

    def test_every_plot_has_words_and_numbers(self, page, faulty):
        found = figures.all_of(faulty)
        assert {f.name for f in found} == {
            "gap-0", "gap-1", "loss-0", "loss-1", "paired-0", "paired-1", "snr-0", "snr-1", "speed-up", "memory",
        }  # fmt: skip
        images = [a for a in page.of("div") if a.get("role") == "img"]
        assert len(images) == len(found)
        assert all(len(a["aria-label"]) > 40 for a in images)
        assert len(page.of("details")) == 6  # gaps, two models' losses, two heat maps, speeds

    def test_status_is_never_colour_alone(self, page):
        assert len(re.findall("✓ pass", "".join(page.texts["td"]))) == 6 + 6 + 6  # matrix, gaps, speeds
        for attrs in page.of("span"):
            if "s-fail" in (attrs.get("class") or ""):
                break
        else:
            pytest.fail("no failing status on the page")

    def test_the_numbers_are_there(self, faulty):
        text = RENDERERS[".html"](faulty)
        curve = next(c for c in faulty.curves[1].curves if c.label == "te-current native")
        assert f"{faulty.curves[1].window_mean(curve.loss, 19):.4f}" in text
        assert "1.310 [1.290, 1.330]" in text
        assert "13100 (10000)" in text
        assert "41.2% / 31.5%" in text
        assert "NVTE_X=&#39;1 2&#39; pytest suites/convergence suites/numerics suites/throughput --recipe te-current --model mini" in text
        assert "2 cells: needs sm_100" in text
        assert "NVIDIA H200, sm_90" in text

    def test_empty_places_say_why(self):
        text = RENDERERS[".html"](view.build([verdict("pass")], None, [], "m"))
        Page(text)
        for reason in (
            "suites/throughput did not run", "there is no GEMM benchmark", "suites/numerics did not run", "No trajectory is on record",
            "records do not say what was skipped", "no claims.toml",
        ):  # fmt: skip
            assert reason in text, reason

    def test_hostile_text_stays_text(self):
        """A name from a record, in every place where one is shown, in both formats."""
        _, given = reports.session(recipes=("te-current",))
        cell = CellKey(model=HOSTILE, recipe=HOSTILE, execution="native", corpus=HOSTILE)
        seeds = [r.model_copy(update={"cell": cell, "provenance": reports.provenance(device=HOSTILE)}) for r in given.records]
        planted = verdict("fail", cell=cell, headline=HOSTILE, lines=[(HOSTILE, HOSTILE)], seeds=[0, 1, 2])
        made = view.build([planted], {HOSTILE: HOSTILE}, [HOSTILE], HOSTILE, evidence.Evidence(records=seeds, claims=given.claims))
        assert made.curves and made.heats
        text = RENDERERS[".html"](made)
        page = Page(text)
        assert "<script>alert" not in text
        assert len(page.of("script")) == 2 + len(figures.all_of(made))
        assert text.count("</style>") == 1
        outside_code = re.sub("(?m:^    .*$)|(?s:```.*?```)", "", RENDERERS[".md"](made))
        assert "<script>alert" not in outside_code
        assert "&lt;script>alert(1)" in outside_code  # without its "<" it opens nothing


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
    def test_the_same_numbers(self, faulty):
        text = RENDERERS[".md"](faulty)
        row = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert text.splitlines()[2].startswith(f"**{faulty.sentence}**")
        assert f"| te-current | mini | native | {row.gap} | 0.50% | 3 | - | fail |" in text
        assert f"| te-current native | pass, {faulty.matrix.rows[1][1][0].gap} | fail, {row.gap} |" in text
        assert "* needs sm_100: te-mxfp8-tiny-native, te-nvfp4-tiny-native" in text
        assert "1.43x (70B), 1.53x (405B)" in text
        widths = {line.count("|") for line in text.splitlines() if line.startswith("|") and "mini | native" in line}
        assert widths == {9}

    def test_json_has_the_view(self, faulty):
        data = json.loads(RENDERERS[".json"](faulty))
        assert data["sentence"] == faulty.sentence
        assert len(data["curves"]) == 2


class TestClaims:
    def test_the_table_is_read_and_ours_stands_beside(self, faulty):
        shown = {(c.claim.source, c.claim.recipe, c.claim.metric): c.ours for c in faulty.claims}
        assert len(shown) == 12
        assert shown["NVIDIA NeMo, FP8 throughput", "te-current", "speed-up"] == [
            "1.31x [1.29, 1.33] (te-current, tiny, native)", "1.31x [1.29, 1.33] (te-current, mini, native)",
        ]  # fmt: skip
        assert shown["NVIDIA NeMo, FP8 throughput", "te-mxfp8", "speed-up"] == []
        assert shown["Transformer Engine, GEMM tool", "te-current", "GEMM speed-up"] == []
        assert len(shown["DeepSeek-V3 (arXiv 2412.19437)", "te-block", "loss gap"]) == 2

    @pytest.mark.parametrize(
        ("text", "fault"),
        [
            ('[[claim]]\nsource = "abc"', r"\[\[claim\]\] 1 key url"),
            ('[[claims]]\nsource = "abc"', "unknown table 'claims'"),
            ("[[claim", "claims.toml: "),
        ],
    )
    def test_faults_are_named(self, tmp_path, text, fault):
        path = tmp_path / "claims.toml"
        path.write_text(text)
        with pytest.raises(ValueError, match=fault):
            claims.load(path)


class TestOrigin:
    def test_two_machines_are_two_sets(self):
        _, given = reports.session(recipes=("te-current",))
        other = [r.model_copy(update={"provenance": reports.provenance(device="NVIDIA B200")}) for r in given.records[:2]]
        found = origin.origins(evidence.Evidence(records=[*other, *given.records[2:]], goldens=given.goldens))
        assert [(o.name, o.records) for o in found] == [("Records, set 1", 2), ("Records, set 2", 6), ("Golden of tiny on synthetic", 8)]
        assert ("device", "NVIDIA B200, sm_90") in found[0].facts

    @pytest.mark.parametrize(
        ("recipe", "execution", "corpus", "expected"),
        [
            ("bf16", "native", "synthetic", "pytest suites/convergence --recipe bf16 --model tiny"),
            ("te-block", "fused", "synthetic", "pytest suites/convergence --recipe te-block --model tiny -k te-block-tiny-fused"),
            ("r", "emulated", "text:a b", "pytest suites/convergence --recipe r --model tiny --execution emulated --corpus 'text:a b'"),
        ],
    )
    def test_commands(self, recipe, execution, corpus, expected):
        cell = CellKey(model="tiny", recipe=recipe, execution=execution, corpus=corpus)
        assert origin.command([verdict("pass", cell=cell, check="loss parity")], evidence.Evidence()) == expected

    def test_only_the_session_s_own_records_are_read(self, tmp_path):
        """An older session's further seeds, and an older record of a check that came to an error, stay out."""
        verdicts, given = reports.session(recipes=("te-current",), seeds=3)
        for r in given.records:
            name = f"seed{r.seed}" if hasattr(r, "seed") else r.check
            write_json(tmp_path / file_name(r.cell, name), r)
        old = reports.run("tiny", "te-current", 7, 160)
        write_json(tmp_path / file_name(old.cell, "seed7"), old)
        found = evidence.records_of(verdicts, tmp_path)
        assert sorted(r.seed for r in found if hasattr(r, "seed")) == [0, 0, 1, 1, 2, 2]
        assert len(found) == 8
        failed = [v.model_copy(update={"status": "error"}) if v.check == "layers" else v for v in verdicts]
        assert len(evidence.records_of(failed, tmp_path)) == 6


def test_judge_writes_each_format(tmp_path, capsys):
    """From records on disk to a page, with a damaged loss among them."""
    _, given = reports.session(recipes=("te-current",))
    for r in given.records:
        name = f"seed{r.seed}" if hasattr(r, "seed") else r.check
        write_json(tmp_path / "records" / file_name(r.cell, name), r)
    code = main(["judge", str(tmp_path / "records"), "--golden-dir", str(reports.GOLDEN), "--report", str(tmp_path / "r.html")])
    assert code == 1  # the made-up runs are stale against the real golden
    text = (tmp_path / "r.html").read_text()
    assert "Refuse: " in text
    assert "does not match its golden" in text
    assert "loss-0" in text
    assert main(["judge", str(tmp_path / "records"), "--golden-dir", str(reports.GOLDEN), "--report", str(tmp_path / "r.pdf")]) == 2
    assert "use .md or .html or .json" in capsys.readouterr().err


def test_infinite_and_missing_values_have_no_number():
    assert figures._percent(None) == 0
    bars = figures._error([(-math.inf, 0.0, math.inf), (0.0, 0.01, 0.03)], "red", 100)
    assert (bars["array"], bars["arrayminus"]) == ([None, 2.0], [None, 1.0])
