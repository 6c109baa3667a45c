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
from fp8parity.report import escape

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


@pytest.mark.parametrize("command", [["judge", "records"], ["compare", "set.zip", "records"]])
def test_markdown_holds_no_image_no_link_and_no_html(project, command):
    main([*command, "--report", "out.md"])
    text = (project / "out.md").read_text()
    assert "evil.example" in text
    plain = rendered(text)
    assert "](https://evil" not in plain and "<" not in plain and "`" not in plain
    assert not re.search(r"!\[[^]]*\]\(", plain)
    assert "\x1b" not in text and "\u202e" not in text


def test_html_shows_control_characters_as_escapes(project):
    main(["judge", "records", "--report", "out.html"])
    text = (project / "out.html").read_text()
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[2J" in text
    assert "<img src=x>" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a_b te-current +0.81% [+0.66%, +0.97%], 3 -> 4", "a_b te-current +0.81% [+0.66%, +0.97%], 3 -> 4"),
        ("[a](b)", "[a]\\(b)"),
        ("_a_ *b* `c` ~d~ $e$", "\\_a\\_ \\*b\\* \\`c\\` \\~d\\~ \\$e\\$"),
        ("# head", "\\# head"),
        ("- item\n- more", "\\- item - more"),
        ("<b>&amp;", "&lt;b>&amp;amp;"),
    ],
)
def test_markdown_escapes_only_markup(text, shown):
    assert escape.markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a :: b", "a :: b"),
        ("::error::x", ": :error::x"),
        ("a\n \t::error::x", "a\n \\t::error::x"),
        ("\x1b[2J\x07é", "\\x1b[2J\\x07é"),
        ("\ud800", "\\ud800"),
    ],
)
def test_a_terminal_gets_text(text, shown):
    assert escape.terminal(text) == shown


def test_everything_is_printed_through_an_escape():
    """A bare print would skip it. The exceptions are annotations, and texts that were escaped before."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in [*(LIBRARY / "cli").glob("*.py"), *(LIBRARY / "gate").glob("*.py")]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print" and path.name != "progress.py"
    ]
    assert {text for text in found if "escape." not in text} <= {"compare.py: print(line)", "reporter.py: print(text)"}


@pytest.mark.slow
def test_a_gate_prints_text(tmp_path):
    """Planted: a problem whose text is hostile."""
    done = projects.start(projects.make(tmp_path), "-k", "te-mxfp8-nano-native", "--require", EVIL)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    printed = done.stdout + done.stderr
    assert "[/usr/lib/x.so] [bold]loud" in printed
    assert not COMMAND.search(printed) and "\x1b[2J" not in printed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("te-current, 2 - 1 = 1", "te-current, 2 - 1 = 1"),
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("a;=1+1| @x", "a;'=1+1|' @x"),
    ],
)
def test_a_text_begins_no_formula(text, shown):
    """Where the comma is a decimal sign, spreadsheets separate fields by semicolons, and by others on request."""
    assert escape.spreadsheet(text) == shown
