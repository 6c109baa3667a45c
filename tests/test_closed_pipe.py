"""A reader that stops, such as ``head``: no traceback, and no file is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fp8parity.cli import main
from narrowed import some
from processes import FIXTURES, ROOT, started
from sessions import GOLDEN

OLD, NEW = (f"golden/records/upgrades/xeon-torchao-0.{minor}.0.zip" for minor in (17, 18))


def without_reader(*command: str) -> tuple[int | None, str]:
    """The exit status of a command whose output nobody reads, and what it says as an error."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as output, started("fp8parity", *command, stdout=output) as process:
        _, error = process.communicate(timeout=60)
        return process.returncode, error


@pytest.mark.parametrize("command", [["compare", OLD, NEW, "--report"], ["predict", "1b", "--gpu", "h100", "--csv"]])
def test_a_reader_that_stops_is_no_error_and_loses_no_report(tmp_path, command):
    """`fp8parity compare OLD NEW --report parity.md | head -1`."""
    path = tmp_path / "out.md"
    assert without_reader(*command, str(path)) == (2, "")
    assert path.stat().st_size > 300


def test_so_does_a_command_that_ends_as_users_see_it(tmp_path):
    """`fp8parity judge RECORDS --report parity.md | head -1`. This process is started, not forked: Python writes the rest at its end."""
    path = tmp_path / "out.md"
    command = [sys.executable, "-m", "fp8parity", "judge", OLD, "--report", str(path)]
    environment, pipe = os.environ | {"PYTHONPATH": FIXTURES}, subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe) as process:
        some(process.stdout).close()
        assert some(process.stderr).read() == b""
        assert process.wait(60) == 2
    assert path.stat().st_size > 300


def test_step_times_of_records_become_goldens_whoever_reads(tmp_path):
    """All of them, also where the reader of the output has gone: `golden store SET | head -1`."""
    (tmp_path / "policy.toml").write_text((Path(GOLDEN) / "policy.toml").read_text())
    without_reader("golden", "store", f"{GOLDEN}/records/h200-throughput.zip", "--golden-dir", str(tmp_path))
    stored = {
        p.name: len(json.loads(p.read_text())["cells"])
        for p in (tmp_path / "throughput" / "nvidia-h200").glob("*.json")
    }
    assert stored == {"small.json": 9, "base.json": 9, "1b.json": 9}
    assert (
        main(["golden", "store", f"{GOLDEN}/records/upgrades/xeon-torchao-0.18.0.zip", "--golden-dir", str(tmp_path)])
        == 2
    )
