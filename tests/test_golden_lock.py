"""Lock files: who waits says for whom, no update is lost, and a killed holder blocks nobody."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fp8parity.records import locks
from narrowed import some

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "CI"} | {"PYTHONPATH": str(ROOT / "fixtures")}
COUNT = """
import sys, time
from pathlib import Path
from fp8parity.records import locks
path = Path(sys.argv[1])
for _ in range(20):
    with locks.locked(path.with_suffix(".lock")):
        number = int(path.read_text())
        time.sleep(0.002)
        path.write_text(str(number + 1))
"""
HOLD = """
import os, signal, sys
from pathlib import Path
from fp8parity.records import locks
with locks.locked(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def start(*command: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, command)], env=ENVIRONMENT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_no_update_of_four_processes_is_lost_and_no_lock_file_stays(tmp_path):
    path = tmp_path / "number.txt"
    path.write_text("0")
    counters = [start("-c", COUNT, path) for _ in range(4)]
    assert [c.wait(60) for c in counters] == [0] * 4
    for c in counters:
        c.communicate()
    assert path.read_text() == "80"
    assert [p.name for p in tmp_path.iterdir()] == ["number.txt"]


def test_shared_holders_do_not_wait_and_the_last_one_removes_the_file(tmp_path, capsys):
    path = tmp_path / "a.lock"
    with locks.locked(path, shared=True), locks.locked(path, shared=True):
        assert path.exists()
    assert capsys.readouterr().err == ""
    assert not path.exists()


def test_a_killed_holder_leaves_a_file_that_blocks_nobody(tmp_path, capsys):
    path = tmp_path / "a.lock"
    start("-c", HOLD, path).communicate()
    assert path.exists()
    with locks.locked(path):
        assert capsys.readouterr().err == ""
    assert not path.exists()


FULL = """
import resource, signal, sys
from pathlib import Path
from fp8parity.records import locks
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with locks.locked(Path(sys.argv[1])):
    pass
"""


def test_a_full_disk_is_named_and_leaves_no_lock_file(tmp_path):
    path = tmp_path / "a.lock"
    _, error = start("-c", FULL, path).communicate()
    assert error.splitlines()[-1] == f"OSError: [Errno 27] cannot write {path}: File too large"
    assert not path.exists()


@pytest.fixture
def golden(tmp_path) -> Path:
    (tmp_path / "policy.toml").write_text((ROOT / "golden" / "policy.toml").read_text())
    return tmp_path


@pytest.mark.parametrize(
    ("command", "written"),
    [
        (["golden", "store", "golden/records/h200-throughput.zip"], "throughput"),
        (["bounds", "golden/records/micro-h200.zip", "--write"], "numerics"),
    ],
    ids=["golden store", "bounds --write"],
)
def test_an_update_of_goldens_waits_and_says_for_whom(golden, command, written):
    path = [ROOT / c if c.endswith(".zip") else c for c in command]
    with locks.golden(golden):
        waiting = start("-m", "fp8parity", *path, "--golden-dir", golden)
        line = some(waiting.stderr).readline()
        assert not (golden / written).exists()
    holder = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    assert re.fullmatch(rf"fp8parity: waiting for {golden}/\.lock\.fp8parity, held by {holder}\n", line)
    out, error = waiting.communicate(timeout=60)
    assert (waiting.returncode, error) == (0, ""), out
    assert (golden / written).exists()
    assert not list(golden.glob(".lock*"))


def test_a_list_of_changed_numbers_waits_for_nobody(golden):
    with locks.golden(golden):
        listing = start("-m", "fp8parity", "bounds", ROOT / "golden/records/micro-h200.zip", "--golden-dir", golden)
        _, error = listing.communicate(timeout=60)
    assert (listing.returncode, error) == (0, "")
