"""Bad files of a project: one line that names file and place, exit status 2, in pytest that of wrong usage."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import inputs
import projects
import pytest
from fp8parity.cli import main
from fp8parity.judging import policy, references
from fp8parity.records import files
from inputs import COMMANDS
from processes import run
from sessions import DAY, GOLDEN

DEEP = "[" * 100_000
RUN = "records/bf16-nano-native-topics-seed0.json"
TIMES = "records/te-current-base-native-topics-training-step.json"
CHECK = "records/te-current-tiny-emulated-topics-gemm.json"
POLICY, KNOWN = (f"golden/{name}.toml" for name in ("policy", "known_failures"))
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


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_nested_files(project, refused, command):
    before = (project / RUN).read_text()
    (project / RUN).write_text(DEEP)
    with zipfile.ZipFile(project / "set.zip", "w") as archive:
        archive.writestr(Path(RUN).name, DEEP)
    assert f"{Path(RUN).name}: its values are nested too deeply" in refused(*COMMANDS[command])
    (project / RUN).write_text(before)
    for name in (POLICY, KNOWN) if command not in ("merge", "plan") else ():
        text = (project / name).read_text()
        (project / name).write_text(f"a = {DEEP}")
        assert f"{name}: its values are nested too deeply" in refused(*COMMANDS[command])
        (project / name).write_text(text)


FIELDS = [
    (RUN, {"seed": 2**64}, "key trajectory.seed"),
    (CHECK, {"values": [{"metric": "sqnr", "where": "x", "value": "much"}]}, "key measurements.values.0.value"),
    (TIMES, {"bf16_seconds": [0.4] * 10}, "key throughput: bf16_seconds holds 10 values, and recipe_seconds 11"),
    (TIMES, {"peak_flops": 0}, "key throughput.peak_flops"),
]


@pytest.mark.parametrize(("name", "fields", "words"), FIELDS)
def test_wrong_field_is_named(project, refused, name, fields, words):
    data = json.loads((project / name).read_text())
    (project / name).write_bytes(inputs.sealed({**data, **fields}))
    assert f"{name}: {words}" in refused()


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
@pytest.mark.parametrize("name", [RUN, POLICY, NUMBERS])
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
    (POLICY, f"a = {'9' * 5000}", "Exceeds the limit"),
    (KNOWN, "[known]\na = 1", "'known' is not a table of rows"),
    (NUMBERS, 'check,"metric', ":1: not a table of comma-separated values"),
    ("golden/numerics/sources.csv", "source\n", ":1: expected the columns"),
]


@pytest.mark.parametrize(("name", "text", "words"), TABLES)
def test_wrong_table_is_named(project, refused, name, text, words):
    (project / name).write_text(text)
    line = refused()
    assert line.startswith(name) and words in line


def test_documents_state_the_limits():
    text = (Path(__file__).parents[1] / "docs" / "ci.md").read_text()
    mebibytes = [limit // 2**20 for limit in (files.FILE_LIMIT, files.ZIP_LIMIT)]
    assert "at most {} MiB a file or an unpacked member, {} MiB a `.zip` file".format(*mebibytes) in text
    assert f"and {files.MEMBERS_LIMIT:,} members" in text


@pytest.fixture
def gate_project(tmp_path):
    return projects.make(tmp_path)


DAMAGED = [
    ("policy.toml", "loss = 3", "golden/policy.toml: 'loss' is not a table of rows"),
    ("loss/nano-topics.json", "{}", "golden/loss/nano-topics.json: no checksum"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "words", "workers"), [*((*row, ()) for row in DAMAGED), (*DAMAGED[0], ("-n", "2"))]
)
def test_a_damaged_reference_is_wrong_usage(gate_project, name, text, words, workers):
    path = gate_project / "golden" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    done = projects.start(gate_project, *workers)
    assert done.returncode == 4, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("ERROR: ") and words in errors[0]
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_golden_folder_without_a_policy_adds_to_the_shipped_one(gate_project):
    (gate_project / "golden" / "policy.toml").unlink()
    (gate_project / "test_own.py").write_text("def test_own():\n    pass\n")
    assert run("pytest", "test_own.py", cwd=gate_project).returncode == 0
    done = projects.start(gate_project, "--recipe", "bf16")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "golden has no golden of nano on topics, so nothing could be judged" in done.stderr
    assert policy.load(gate_project / "golden", DAY).loss == policy.load(GOLDEN, DAY).loss
    assert references.load(gate_project / "golden").loss == references.load(GOLDEN).loss
