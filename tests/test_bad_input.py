"""Bad files of a project: one line that names file and place, exit status 2, in pytest that of wrong usage."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import inputs
import projects
import pytest
from fp8parity.cli import main
from inputs import COMMANDS

RUN = "records/bf16-nano-native-topics-seed0.json"
POLICY, KNOWN = "golden/policy.toml", "golden/known_failures.toml"
NUMBERS = "golden/numerics/shared.csv"


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(inputs.make(tmp_path))
    return tmp_path


@pytest.fixture
def refused(project, capsys) -> Callable[..., str]:
    """Runs a command, which must refuse its input, and returns the line on stderr."""

    def run(*command: str) -> str:
        assert main(command or COMMANDS["judge"]) == 2
        error = str(capsys.readouterr().err)
        assert len(error.splitlines()) == 1 and error.startswith("fp8parity: ")
        return error.removeprefix("fp8parity: ").rstrip()

    return run


def test_run_that_diverged_is_no_bad_input(project):
    path = project / "records/te-current-nano-emulated-topics-seed0.json"
    ended = {"step": 1, "where": "loss"}
    stopped = {"loss": [1.0, "NaN"], "grad_norm": [1.0, "Infinity"], "validation": [], "non_finite": ended}
    path.write_bytes(inputs.sealed({**json.loads(path.read_text()), **stopped}))
    assert main(COMMANDS["judge"]) == 1


def test_half_a_character_is_refused(project, refused):
    data = (project / RUN).read_bytes()
    (project / RUN).write_bytes(data.replace(b'"session": "s"', b'"session": "a\\ud83dx"'))
    assert f"{RUN}: a text holds half of a character pair" in refused()
    whole = {**json.loads(data), "session": "\U0001f600 \\ud800"}
    (project / RUN).write_bytes(inputs.sealed(whole))
    assert main(COMMANDS["judge"]) == 1


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "missing", "no text"])
@pytest.mark.parametrize("name", [RUN, NUMBERS])
def test_only_regular_files_of_text_are_read(project, refused, name, kind):
    path = project / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(b"{}\x80")
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nowhere")
    if kind == "missing" and name == NUMBERS:
        assert main(COMMANDS["judge"]) in (1, 2)  # a golden folder needs no numbers
    else:
        assert name in refused()


TABLES = [
    (POLICY, "loss = 3", "'loss' is not a table of rows"),
    (POLICY, f"a = {'[' * 100_000}", "its values are nested too deeply"),
    (KNOWN, "[known]\na = 1", "'known' is not a table of rows"),
    (NUMBERS, 'check,"metric', ":1: not a table of comma-separated values"),
    ("golden/numerics/sources.csv", "source\n", ":1: expected the columns"),
]


@pytest.mark.parametrize(("name", "text", "words"), TABLES)
def test_wrong_table_is_named(project, refused, name, text, words):
    (project / name).write_text(text)
    line = refused()
    assert line.startswith(name) and words in line


@pytest.fixture
def gate_project(tmp_path):
    return projects.make(tmp_path)


DAMAGED = [
    ("policy.toml", "loss = 3", "golden/policy.toml: 'loss' is not a table of rows", ("-n", "2")),
    ("loss/nano-topics.json", "{}", "golden/loss/nano-topics.json: no checksum", ()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text", "words", "workers"), DAMAGED)
def test_a_damaged_reference_is_wrong_usage(gate_project, name, text, words, workers):
    path = gate_project / "golden" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    done = projects.start(gate_project, *workers)
    assert done.returncode == 4, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("ERROR: ") and words in errors[0]
    assert "Traceback" not in done.stdout
