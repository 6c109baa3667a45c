"""Text from records is data wherever it ends: in a terminal, in Markdown, on an HTML page, in a plot, in a workflow command."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import inputs
import projects
import pytest
from fp8parity.cli import main
from fp8parity.judging.verdict import Gap, LossDetail, Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import ci, escape

LIBRARY = Path(escape.__file__).parents[1]
EVIL = (
    "[/usr/lib/x.so] [bold]loud[/bold] :warning:\x1b[2J\x9b31m\n::error title=x::planted\n  ::set-env name=A::b\n##[error]planted"
    " ![image](https://evil.example/x.png) [link](https://evil.example) <img src=x> **bold** | `code` \u202egnp.exe\r$x$"
)
COMMAND = re.compile(r"^\s*::|##\[", re.MULTILINE)


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """Every text of a check's record, and the device of all, is hostile; the check is red, so that its texts are shown."""
    monkeypatch.chdir(inputs.make(tmp_path))
    for path in (tmp_path / "records").glob("*.json"):
        data = json.loads(path.read_text())
        data["provenance"] |= {
            "device": EVIL,
            "system": EVIL,
            "environment": {"NVTE_X": EVIL},
            "packages": {"torch": EVIL},
        }
        data["session"] = EVIL
        if data["kind"] == "measurements":
            data["notes"] = [EVIL]
            data["values"] = [
                {"metric": EVIL, "where": EVIL, "value": 1.0},
                {"metric": "fprop sqnr", "where": EVIL, "value": 1.0},
            ]
        path.write_bytes(inputs.sealed(data))
    return tmp_path


@pytest.mark.parametrize(
    "command",
    [
        ["judge", "records"],
        ["compare", "set.zip", "records"],
        ["golden", "bounds", "records"],
        ["golden", "diff", "HEAD", "--records", "records"],
    ],
)
def test_commands_print_hostile_text_as_text(project, capsys, monkeypatch, command):
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    main(command)
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert not COMMAND.search(text)
    assert not any((ord(c) < 32 and c != "\n") or 127 <= ord(c) < 160 or c == "\u202e" for c in text)
    assert command[1] == "diff" or ("[/usr/lib/x.so]" in text and "[bold]loud[/bold] :warning:" in text)


def test_annotations_are_the_only_workflow_commands(project, capsys, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["compare", "set.zip", "records"]) == 2
    commands = [line for line in capsys.readouterr().out.splitlines() if COMMAND.search(line)]
    assert commands and all(re.fullmatch(r"::error title=[^:,\r\n]*::[^\r\n]*", line) for line in commands)
    assert not any("\x1b" in line for line in commands)


def rendered(text: str) -> str:
    """What is left of Markdown after its code and its backslash escapes, in which a link, an image or a tag would have a meaning."""
    without_code = re.sub(r"(?m:^    .*$)|(?s:^```$.*?^```$)", "", text, flags=re.MULTILINE)
    return re.sub(r"\\.", "", without_code)


def test_markdown_holds_no_image_no_link_and_no_html(project):
    main(["judge", "records", "--report", "out.md", "--report", "out.html"])
    text, page = (project / "out.md").read_text(), (project / "out.html").read_text()
    assert "evil.example" in text
    plain = rendered(text)
    assert "](https://evil" not in plain and "<" not in plain and "`" not in plain
    assert not re.search(r"!\[[^]]*\]\(", plain)
    assert all("\x1b" not in t and "\u202e" not in t for t in (text, page))
    assert "\\x1b[2J" in page and "<img src=x>" not in page


SHOWN = [
    (escape.markdown, "a_b te-current +0.81% [+0.66%, +0.97%], 3 -> 4", None),
    (escape.markdown, "[a](b)", "[a]\\(b)"),
    (escape.markdown, "_a_ *b* `c` ~d~ $e$", "\\_a\\_ \\*b\\* \\`c\\` \\~d\\~ \\$e\\$"),
    (escape.markdown, "# head", "\\# head"),
    (escape.markdown, "- item\n- more", "\\- item - more"),
    (escape.markdown, "<b>&amp;", "&lt;b>&amp;amp;"),
    (escape.terminal, "a :: b", None),
    (escape.terminal, "::error::x", ": :error::x"),
    (escape.terminal, "a\n \t::error::x", "a\n \\t::error::x"),
    (escape.terminal, "\x1b[2J\x07é", "\\x1b[2J\\x07é"),
    (escape.terminal, "\ud800", "\\ud800"),
    # Where the comma is a decimal sign, spreadsheets separate fields by semicolons, and by others on request.
    (escape.spreadsheet, "te-current, 2 - 1 = 1", None),
    (escape.spreadsheet, "=1+1", "'=1+1"),
    (escape.spreadsheet, "+1", "'+1"),
    (escape.spreadsheet, "a;=1+1| @x", "a;'=1+1|' @x"),
]


@pytest.mark.parametrize(("escaped", "text", "shown"), SHOWN)
def test_only_what_has_a_meaning_is_escaped(escaped, text, shown):
    assert escaped(text) == (text if shown is None else shown)


def test_everything_is_printed_through_an_escape():
    """A bare print would skip it. The exceptions are annotations, texts that were escaped before, and tables."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in [*(LIBRARY / "cli").glob("*.py"), *(LIBRARY / "gate").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and path.name != "progress.py"
    ]
    bare = {text for text in found if "escape." not in text and "print(table(" not in text}
    tables = {text for text in bare if text.startswith("compare.py: print(comparison.text(")}
    assert bare - tables <= {"compare.py: print(line)", "reporter.py: print(text)"}


@pytest.mark.slow
def test_a_gate_prints_text(tmp_path):
    """Planted: a problem whose text is hostile."""
    done = projects.start(projects.make(tmp_path), "-k", "te-mxfp8-nano-native", "--require", EVIL)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    printed = done.stdout + done.stderr
    assert "[/usr/lib/x.so] [bold]loud" in printed
    assert not COMMAND.search(printed) and "\x1b[2J" not in printed


def verdict(status="fail", corpus="topics", check="gemm", detail=None):
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus=corpus)
    return Verdict(cell=cell, check=check, status=status, headline="h", detail=detail)


def test_one_annotation_a_failing_cell():
    found = ci.failures(
        [verdict(), verdict("error", check="state"), verdict("pass"), verdict("known")], ["nothing ran"]
    )
    assert [title for title, _ in found] == ["te-current-tiny-native: gemm fail, state error", "fp8-parity"]
    assert found[0][1].count("\n") == 1


def test_workflow_commands_are_escaped():
    assert ci.error_lines([("a: b, c%", "1%\r\n2: 3, 4")], {"GITHUB_ACTIONS": "true"}) == [
        "::error title=a%3A b%2C c%25::1%25%0D%0A2: 3, 4"
    ]


GAP = Gap(mean=0.01, low=-float("inf"), high=float("inf"), n=1, text="t")


@pytest.mark.parametrize(
    ("detail", "name", "value"),
    [
        (LossDetail(margin=0.005, seeds=[0], reasons=["gradient norm 0.96"]), "reason 1", "gradient norm 0.96"),
        (LossDetail(margin=0.005, seeds=[0], gap=GAP), "low", "-inf"),
        (LossDetail(margin=0.005, seeds=[0], unmeasured=["no A", "no B"]), "rules only", "no A; no B"),
    ],
)
def test_a_detail_is_a_property(detail, name, value):
    assert dict(ci.properties([verdict(detail=detail)]))[name] == value
    assert name not in dict(ci.properties([verdict()]))


def test_a_summary_that_is_too_long_is_cut_to_its_head(tmp_path):
    path = tmp_path / "s.md"
    ci.summarize(lambda: "# T\n\nsentence\n" + "x" * ci.SUMMARY_LIMIT, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == "# T\n\nsentence\n\nThe whole report is too long for a summary; see the job's files.\n"


def test_compare_annotates_what_is_worse(trajectory, tmp_path, capsys, monkeypatch):
    (tmp_path / "policy.toml").write_text('[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "a made-up row"\n')
    for name, shift in (("old", 0.0), ("new", 0.02)):
        for r in [
            x for s in range(3) for x in (trajectory(seed=s), trajectory("te-current", s, shift + 1e-4 * (s + 1)))
        ]:
            write_json(tmp_path / name / name_of(r), r)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--golden-dir", str(tmp_path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(lines) == 1
    assert lines[0].startswith("::error title=te-current-nano-emulated loss%3A recipe changed%3A worse::")
    assert "# FP8 parity: OLD and NEW" in (tmp_path / "s.md").read_text()
