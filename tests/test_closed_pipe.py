"""A reader that stops, such as ``head``: no traceback, and no file is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fp8parity.cli import main
from narrowed import some
from sessions import GOLDEN

OLD, NEW = (f"golden/records/upgrades/xeon-torchao-0.{minor}.0.zip" for minor in (17, 18))


@pytest.mark.parametrize(
    "command", [["judge", OLD, "--report"], ["compare", OLD, NEW, "--report"], ["predict", "1b", "--gpu", "h100", "--csv"]]
)
def test_a_reader_that_stops_is_no_error_and_loses_no_report(tmp_path, command):
    """`fp8parity judge RECORDS --report parity.md | head -1`."""
    root, path = Path(__file__).parents[1], tmp_path / "out.md"
    command = [sys.executable, "-m", "fp8parity", *command, str(path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        some(process.stdout).close()
        assert some(process.stderr).read() == b""
        assert process.wait(60) == 2
    assert path.stat().st_size > 300


def test_step_times_of_records_become_goldens_whoever_reads(tmp_path):
    """All of them, also where the reader of the output has gone: `golden store SET | head -1`."""
    (tmp_path / "policy.toml").write_text((Path(GOLDEN) / "policy.toml").read_text())
    command = [sys.executable, "-m", "fp8parity", "golden", "store", f"{GOLDEN}/records/h200-throughput.zip", "--golden-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        some(process.stdout).close()
    stored = {p.name: len(json.loads(p.read_text())["cells"]) for p in (tmp_path / "throughput" / "nvidia-h200").glob("*.json")}
    assert stored == {"small.json": 9, "base.json": 9, "1b.json": 9}
    assert main(["golden", "store", f"{GOLDEN}/records/upgrades/xeon-torchao-0.18.0.zip", "--golden-dir", str(tmp_path)]) == 2
