"""What cannot be written is refused before the first test; what fails at the end leaves verdicts and exit status, and is one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gates
import projects
import pytest
from processes import Done

pytestmark = pytest.mark.slow

FULL = "/dev/full"
BROKEN_TABLE = """
from fp8parity.gate import reporter

def table(report, width):
    raise KeyError("column")

PATCH.setattr(reporter, "table", table)
"""
BROKEN_VIEW = """
from fp8parity.report.sections import losses

def curves(verdicts, evidence, page):
    if evidence.records:
        raise KeyError("curve")
    return []

PATCH.setattr(losses, "curves", curves)
"""
INTERNAL = """
def pytest_runtest_logfinish(nodeid):
    if "te-block" in nodeid:
        raise KeyError("plugin")
"""


@pytest.fixture
def gate(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    return gates.of(tmp_path)


def survived(done: Done, sentence: str, line: str, fault: str = "") -> None:
    """The table and the sentence, then one line about the failure; a traceback for a ``fault`` of this program."""
    assert sentence in done.stdout
    assert line in done.stdout
    assert done.stdout.index(sentence) < done.stdout.index(line)
    assert ("Traceback" in done.stdout) == bool(fault) and fault in done.stdout
    assert "INTERNALERROR" not in done.stdout + done.stderr


LATE = """
import pathlib

def pytest_runtest_logfinish(nodeid):
    if not pathlib.Path("late").exists():
        pathlib.Path("late").write_text("")
"""
"""Where a report was to stand in a folder there is a file when the tests are done. What can be seen before is refused before."""
WAYS = {
    "--parity-report late/r.html could not be written: ": ("--parity-report", "late/r.html"),
    "a file of another plugin could not be written: ": ("--junitxml", FULL),
    "the step summary could not be written: [Errno 28] cannot write /dev/full: No space left on device": (),
}


@pytest.mark.parametrize(
    ("way", "status", "code", "sentence"),
    [
        (0, "pass", 3, "Accept: all 4"),
        (1, "fail", 1, "Refuse: te-block emulated on tiny fails"),
        (2, "pass", 3, "Accept: all 4"),
    ],
    ids=["report", "junit", "summary"],
)
def test_unwritable_report_is_one_line(gate, tmp_path, way, status, code, sentence):
    line, arguments = list(WAYS.items())[way]
    variables = {"GITHUB_ACTIONS": "true"} | ({} if arguments else {"GITHUB_STEP_SUMMARY": FULL})
    done = gate(*arguments, "--parity-report", "ok.json", environment=variables, te_block=status, more=LATE)
    assert done.returncode == code, done.stdout
    survived(done, sentence, f"fp8-parity: {line}")
    assert f"::error title=fp8-parity::{line}" in done.stdout
    assert json.loads((tmp_path / "ok.json").read_text())["sentence"].startswith(sentence)
    assert "generated xml file" not in done.stdout


def test_broken_table_leaves_the_sentence(gate):
    done = gate(more=BROKEN_TABLE)
    assert done.returncode == 3
    line = "fp8-parity: the table could not be written: KeyError: 'column'"
    survived(done, "Accept: all 4 checks are green.", line, 'raise KeyError("column")')


def test_broken_plots_leave_the_verdicts(gate, tmp_path):
    done = gate("--parity-report", "r.md", "--parity-report", "r.csv", more=BROKEN_VIEW)
    assert done.returncode == 1
    assert "Refuse: all 4 checks that ran are green, but the report lacks its plots: KeyError: 'curve'." in done.stdout
    assert 'raise KeyError("curve")' in done.stdout
    assert "| te-block | tiny |" in (tmp_path / "r.md").read_text()
    assert (tmp_path / "r.csv").read_text().startswith("kind,gpu,model,"), "it holds times, and none was judged"


def test_internal_error_leaves_the_verdicts(gate, tmp_path):
    done = gate("-k", "emulated", "--parity-report", "r.json", more=INTERNAL)
    assert done.returncode == 3
    sentence = json.loads((tmp_path / "r.json").read_text())["sentence"]
    assert sentence == (
        "Refuse: all 3 checks that ran are green, but 3 selected tests: 2 judged, 0 skipped, 0 crashed, 1 missing "
        "(first test_loss_parity[te-current-tiny-emulated]); pytest stopped by an internal error: KeyError: 'plugin'."
    )
    assert sentence in done.stdout


def refused(done: Done, words: str, folder: Path) -> None:
    text = done.stdout + done.stderr
    assert done.returncode == 4, text
    [line] = [line for line in text.splitlines() if line.startswith("ERROR: ")]
    assert re.search(words, line)
    assert "Traceback" not in text and "verdict " not in text and "Refuse" not in text
    assert not list((folder / ".parity").glob("*.json"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--parity-report", "file/r.html"), "--parity-report file/r.html: cannot write into file: Not a directory"),
        (("--parity-report", "r.pdf"), "--parity-report r.pdf: no renderer for '.pdf'; use .md or .html or .json"),
        (("--parity-report", "folder.html"), "--parity-report folder.html: it is a folder; name a file in it"),
        (("--parity-report", "/proc/r.md"), "--parity-report /proc/r.md: cannot write into /proc: "),
        (("--parity-records", "file/x"), "--parity-records file/x: cannot write into .*/file: Not a directory"),
    ],
)
def test_unwritable_place_is_refused(gate, tmp_path, arguments, words):
    refused(gate(*arguments), words, tmp_path)


def test_missing_golden_folder_is_refused(tmp_path):
    """Every check would end as an error, one after the other."""
    done = projects.start(projects.make(tmp_path), "--golden-dir", "golen")
    refused(done, "--golden-dir golen: no such folder; --golden-update makes one", tmp_path)
