"""Who waits for whom: lock files, golden folders and GPUs. Two threads contend for a lock file as two processes do."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from fp8parity.records.files import lock_golden, locked
from fp8parity.training import hardware as locks
from fp8parity.training.hardware import GPU, Use

ROOT = Path(__file__).parents[1]
HOLDER = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
ALONE = Use(alone=True)


class Holder:
    """A thread that takes a lock and keeps it until it is told to release it."""

    def __init__(self, lock: AbstractContextManager[None]) -> None:
        self.holds, self.end, self.lock = threading.Event(), threading.Event(), lock
        self.thread = threading.Thread(target=self._hold, daemon=True)
        self.thread.start()

    def _hold(self) -> None:
        with self.lock:
            self.holds.set()
            self.end.wait(60)

    def release(self) -> None:
        self.end.set()
        self.thread.join(60)


@contextmanager
def holding(lock: AbstractContextManager[None]) -> Iterator[Holder]:
    holder = Holder(lock)
    try:
        yield holder
    finally:
        holder.end.set()  # it may still wait for a lock that the test holds


def gpu(folder: Path, use: Use, name: str = "gpu-0") -> AbstractContextManager[None]:
    return locks.held(folder, GPU(name, 80.0), use)


@pytest.mark.parametrize("quiet", [False, True])
def test_second_process_waits_and_says_for_whom(tmp_path, capfd, quiet):
    path = tmp_path / "a" / "b" / ".lock"
    with locked(path), holding(locked(path, quiet=quiet)) as second:
        assert not second.holds.wait(0.2)
    second.thread.join(30)
    assert second.holds.is_set()
    said = rf"fp8parity: waiting for {re.escape(str(path))}, held by {HOLDER}\n"
    assert re.fullmatch("" if quiet else said, capfd.readouterr().err)


def test_killed_holder_blocks_no_other(tmp_path, capfd):
    path = tmp_path / "a.lock"
    code = (
        "import os, sys, pathlib\nfrom fp8parity.records.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])):\n    os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "fixtures")}
    done = subprocess.run([sys.executable, "-c", code, str(path)], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    with locked(path):
        assert capfd.readouterr().err == ""


def test_golden_folder_is_held_if_it_exists(tmp_path):
    with lock_golden(tmp_path / "golden"):
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "golden").mkdir()
    with lock_golden(tmp_path / "golden"), holding(lock_golden(tmp_path / "golden")) as second:
        assert not second.holds.wait(0.2)


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        (Use(), Use(), False),
        (Use(), ALONE, True),
        (ALONE, Use(), True),
        (ALONE, ALONE, True),
        (Use(58), Use(10), False),
        (Use(64), Use(20), True),
        (Use(20), Use(64), True),
        (Use(100), Use(), True),
    ],
)
def test_gpu_is_shared_as_far_as_its_memory_goes(tmp_path, first, second, waits):
    with gpu(tmp_path, first), holding(gpu(tmp_path, second)) as other:
        assert other.holds.wait(0.3 if waits else 30) is not waits
    assert other.holds.wait(30)


@pytest.mark.parametrize("waiting", [ALONE, Use(76.0)], ids=["timed", "large"])
def test_waiting_run_is_not_overtaken_by_small_runs(tmp_path, waiting):
    with holding(gpu(tmp_path, Use(20.0))) as one:
        assert one.holds.wait(30)
        with holding(gpu(tmp_path, waiting)) as first:
            assert not first.holds.wait(0.2)
            with holding(gpu(tmp_path, Use(4.0))) as later:
                assert not later.holds.wait(0.2)
                one.release()
                assert first.holds.wait(30)
                assert waiting is not ALONE or not later.holds.wait(0.1)
                first.release()
                assert later.holds.wait(30)
