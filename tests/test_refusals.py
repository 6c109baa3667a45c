"""What can be refused is refused in one line before the first test: nothing is trained, and no file is made."""

from __future__ import annotations

import re
from pathlib import Path

import gates
import projects
import pytest
from processes import Done

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.html").mkdir()
    return gates.of(tmp_path)


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


def test_folders_are_made_when_needed(gate, tmp_path):
    done = gate("--collect-only", "--parity-report", "new/r.md", "--parity-records", "records/deep")
    assert done.returncode == 0
    assert gate("--parity-report", "new/r.md", "--parity-records", "records/deep").returncode == 0
    assert (tmp_path / "new/r.md").exists()
    assert list((tmp_path / "records/deep").glob("*.json"))


@pytest.fixture
def project(tmp_path):
    return projects.make(tmp_path)


def test_missing_golden_folder_is_refused(project):
    """Every check would end as an error, one after the other."""
    refused(
        projects.start(project, "--golden-dir", "golen"),
        "--golden-dir golen: no such folder; --golden-update makes one",
        project,
    )
