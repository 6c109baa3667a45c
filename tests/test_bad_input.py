"""Bad input by hand: each kind of file that a command may meet gives exit status 2 and one line with file and place."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import inputs
import pytest
from fp8parity.cli import main
from fp8parity.records import files
from fp8parity.records.storage import read_json
from inputs import COMMANDS

DEEP = "[" * 100_000
RUN = "bf16-nano-native-topics-seed0.json"
TIMES = "te-current-base-native-topics-training-step.json"
CHECK = "te-current-tiny-emulated-topics-gemm.json"


@pytest.fixture
def project(trajectory, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(inputs.make(tmp_path, trajectory))
    return tmp_path


@pytest.fixture
def refused(project, capsys):
    """Runs a command, which must refuse its input, and returns the one line on stderr without its beginning."""

    def run(*command: str) -> str:
        assert main(command or COMMANDS["judge"]) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        return error.removeprefix("fp8parity: ").rstrip()

    return run


def edited(project: Path, name: str, **fields: Any) -> None:
    """Replace fields of a record; a name with two underscores goes one level down. The checksum fits."""
    path = project / "records" / name
    data = json.loads(path.read_text())
    for key, value in fields.items():
        *way, last = key.split("__")
        holder = data
        for part in way:
            holder = holder[part]
        holder[last] = value
    path.write_bytes(inputs.sealed(data))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_nested_file(project, refused, command):
    (project / "records" / RUN).write_text(DEEP)
    with zipfile.ZipFile(project / "set.zip", "w") as archive:
        archive.writestr(RUN, DEEP)
    assert f"{RUN}: its values are nested too deeply" in refused(*COMMANDS[command])


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("merge", "plan")])
@pytest.mark.parametrize("name", ["policy.toml", "claims.toml", "known_failures.toml"])
def test_every_command_with_a_policy_refuses_nested_tables(project, refused, command, name):
    (project / "golden" / name).write_text(f"a = {DEEP}")
    assert f"golden/{name}: its values are nested too deeply" in refused(*COMMANDS[command])


@pytest.mark.parametrize("version", [None, "1", 1.5, -1, True, [], {}, 10**30])
def test_a_schema_version_is_a_whole_number(project, refused, version):
    edited(project, RUN, schema_version=version)
    assert f"records/{RUN}: " in refused() and "schema" in refused()


ODD = [
    (RUN, {"seed": -1}, "key trajectory.seed"),
    (RUN, {"seed": 2**64}, "key trajectory.seed"),
    (RUN, {"peak_memory": -1}, "key trajectory.peak_memory"),
    (RUN, {"seconds": float("nan")}, "key trajectory.seconds"),
    (RUN, {"schedule": {}}, "key trajectory: schedule.steps is None"),
    (RUN, {"schedule__steps": -12}, "key trajectory: schedule.steps is -12; it is a number of steps, from 1 to"),
    (RUN, {"schedule__steps": 12.5}, "key trajectory: schedule.steps is 12.5"),
    (RUN, {"schedule__tail": 0}, "key trajectory: schedule.tail is 0"),
    (RUN, {"schedule__tail": 13}, "key trajectory: schedule.tail is 13, and the schedule has 12 steps"),
    (RUN, {"schedule__lr": {"a": 1}}, "key trajectory.schedule.lr"),
    (RUN, {"loss": [1.0] * 11}, "key trajectory: grad_norm holds 12 values, and loss 11"),
    (
        RUN,
        {"loss": [1.0] * 11, "grad_norm": [1.0] * 11},
        "key trajectory: loss holds 11 values, and the schedule has 12 steps",
    ),
    (
        RUN,
        {"loss": [1.0] * 13, "grad_norm": [1.0] * 13},
        "key trajectory: loss holds 13 values, and the schedule has 12 steps",
    ),
    (RUN, {"validation": []}, "key trajectory: validation is empty, and the run did not stop early"),
    (RUN, {"validation": [[11, 1.0], [5, 1.0]]}, "key trajectory: the steps of its validations do not rise: [11, 5]"),
    (RUN, {"validation": [[12, 1.0]]}, "key trajectory: the last validation is at step 12 of 12; steps count from 0"),
    (RUN, {"validation": [[5]]}, "key trajectory.validation.0"),
    (RUN, {"provenance__capability": [9]}, "key trajectory.provenance.capability"),
    (RUN, {"cell__model": "../nano"}, "key trajectory.cell.model"),
    (RUN, {"cell__recipe": "bf16\n::error"}, "key trajectory.cell.recipe"),
    (RUN, {"variant": "a/b"}, "key trajectory.variant"),
    (CHECK, {"check": "../gemm"}, "key measurements.check"),
    (CHECK, {"values": [{"metric": "sqnr", "where": "x", "value": "much"}]}, "key measurements.values.0.value"),
    (TIMES, {"bf16_memory": -1}, "key throughput.bf16_memory"),
    (TIMES, {"tokens": -1}, "key throughput.tokens"),
    (TIMES, {"bf16_seconds": [0.4] * 10}, "key throughput: bf16_seconds holds 10 values, and recipe_seconds 11"),
    (TIMES, {"bf16_seconds": [], "recipe_seconds": []}, "key throughput.bf16_seconds"),
    (TIMES, {"recipe_seconds": [0.0] * 11}, "key throughput.recipe_seconds.0"),
    (TIMES, {"peak_flops": 0}, "key throughput.peak_flops"),
]


@pytest.mark.parametrize(("name", "fields", "words"), ODD)
def test_odd_fields_are_named(project, refused, name, fields, words):
    edited(project, name, **fields)
    assert f"records/{name}: {words}" in refused()


@pytest.mark.parametrize("half", ["\\ud800", "\\uDC00", "a\\ud83dx"])
def test_half_a_character_is_refused(project, refused, half):
    path = project / "records" / RUN
    path.write_bytes(path.read_bytes().replace(b'"session": "s"', f'"session": "{half}"'.encode()))
    assert f"records/{RUN}: a text holds half of a character pair" in refused()


def test_a_whole_pair_is_a_character(project):
    edited(project, RUN, session="\U0001f600 \\ud800")
    assert main(COMMANDS["judge"]) == 1


def test_a_run_that_diverged_is_no_bad_input(project):
    """It holds NaN, fewer steps than its schedule, and no validation. It is red, and its record is read."""
    stopped = {
        "loss": [1.0, "NaN"],
        "grad_norm": [1.0, "Infinity"],
        "validation": [],
        "non_finite": {"step": 1, "where": "loss"},
    }
    edited(project, "te-current-nano-emulated-topics-seed0.json", **stopped)
    assert main(COMMANDS["judge"]) == 1


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"{}\x80"])
@pytest.mark.parametrize(
    "name", [f"records/{RUN}", "golden/policy.toml", "golden/loss/nano-topics.json", "golden/numerics/shared.csv"]
)
def test_text_is_utf_8(project, refused, name, content):
    (project / name).write_bytes(content)
    assert f"{name}: not UTF-8 text at byte {content.index(0xFF) if 0xFF in content else 2}" in refused()


@pytest.mark.parametrize(
    "name", [f"records/{RUN}", "golden/policy.toml", "golden/claims.toml", "golden/loss/nano-topics.json"]
)
@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "gone"])
def test_only_regular_files_are_read(project, refused, name, kind):
    path = project / name
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/nowhere")
    if kind == "gone" and name == "golden/claims.toml":
        assert main(COMMANDS["judge"]) == 1  # a golden folder needs no claims
    else:
        assert f"{name}: {'cannot be read: No such file' if kind == 'gone' else 'not a regular file'}" in refused()


def test_a_set_that_is_a_device_or_a_fifo_is_refused(project, refused):
    os.mkfifo(project / "fifo.zip")
    (project / "zero.zip").symlink_to("/dev/zero")
    for name in ("fifo.zip", "zero.zip"):
        assert refused("judge", name) == f"{name}: not a regular file; give a file that holds data"


def test_large_files_are_refused(project, refused, monkeypatch):
    monkeypatch.setattr(files, "FILE_LIMIT", 2**20)
    with zipfile.ZipFile(project / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", b" " * (2**20 + 1))
    assert refused("judge", "bomb.zip") == "bomb.zip/a.json: larger than 1 MiB, the most that is read"
    (project / "records" / RUN).write_bytes(b" " * (2**20 + 1))
    assert refused() == f"records/{RUN}: larger than 1 MiB, the most that is read"


def test_zip_limits_hold_for_the_file_and_its_members(project, refused, monkeypatch):
    monkeypatch.setattr(files, "MEMBERS_LIMIT", 16)
    assert main(COMMANDS["judge zip"]) in (0, 1)
    monkeypatch.setattr(files, "MEMBERS_LIMIT", 3)
    assert "set.zip: 16 members; 3 are the most that are read" in refused(*COMMANDS["judge zip"])
    monkeypatch.setattr(files, "ZIP_LIMIT", 1024)
    assert "set.zip: larger than 0.000976562 MiB" in refused(*COMMANDS["judge zip"])


def patched(path: Path, at: bytes, offset: int, value: int) -> None:
    """Set one byte behind each signature of a .zip file."""
    data, found = bytearray(path.read_bytes()), 0
    while (found := data.find(at, found)) >= 0:
        data[found + offset] = value
        found += 4
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("local", "central", "value", "words"),
    [
        (6, 8, 1, "is encrypted; give a .zip file without a password"),
        (8, 10, 97, "not a complete .zip file: That compression method"),
    ],
)
def test_encrypted_and_unknown_members_are_refused(project, refused, local, central, value, words):
    patched(project / "set.zip", b"PK\x03\x04", local, value)
    patched(project / "set.zip", b"PK\x01\x02", central, value)
    assert f"set.zip/bf16-nano-native-topics-seed0-outputs-shifted.json: {words}" in refused(*COMMANDS["judge zip"])


def test_a_member_that_is_no_text_is_named(project, refused):
    with zipfile.ZipFile(project / "set.zip", "w") as archive:
        archive.writestr("a.json", b"\xff")
    assert refused(*COMMANDS["judge zip"]) == "set.zip/a.json: not UTF-8 text at byte 0; the file may be damaged"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("policy.toml", "loss = 3", "golden/policy.toml: 'loss' is not a table of rows"),
        ("policy.toml", "loss = [1, 2]", "golden/policy.toml: 'loss' is not a table of rows"),
        ("known_failures.toml", "[known]\na = 1", "golden/known_failures.toml: 'known' is not a table of rows"),
        ("policy.toml", f"a = {'9' * 5000}", "golden/policy.toml: Exceeds the limit"),
        (
            "numerics/shared.csv",
            'check,"metric',
            "golden/numerics/shared.csv:1: not a table of comma-separated values: unexpected end",
        ),
        (
            "numerics/shared.csv",
            "a" * 200_000,
            "golden/numerics/shared.csv:1: not a table of comma-separated values: field larger",
        ),
        ("numerics/sources.csv", "source\n", "golden/numerics/sources.csv:1: expected the columns"),
    ],
)
def test_odd_tables_are_named(project, refused, name, text, words):
    (project / "golden" / name).write_text(text)
    assert words in refused()


def test_a_file_without_rights_is_named(project, monkeypatch):
    """The rights themselves do not stop root, so the error is planted."""

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert stat.S_ISREG((project / "records" / RUN).stat().st_mode)
    with pytest.raises(ValueError, match=f"{RUN}: cannot be read: Permission denied"):
        read_json(project / "records" / RUN)


def test_the_limits_are_those_of_the_documents():
    text = (Path(__file__).parents[1] / "docs" / "ci.md").read_text()
    mebibytes = [limit // 2**20 for limit in (files.FILE_LIMIT, files.ZIP_LIMIT)]
    assert "at most {} MiB a file or an unpacked member, {} MiB a `.zip` file".format(*mebibytes) in text
    assert f"and {files.MEMBERS_LIMIT:,} members" in text
