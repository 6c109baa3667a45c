"""Writers that are killed leave the old file or the new one; who waits for whom: lock files, folders, GPUs."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey, Source
from fp8parity.records import files
from fp8parity.records.cell import Execution
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


def test_second_process_waits_and_says_for_whom(tmp_path, capfd):
    path = tmp_path / "a" / "b" / ".lock"
    with locked(path), holding(locked(path)) as second:
        assert not second.holds.wait(0.2)
    second.thread.join(30)
    assert second.holds.is_set()
    said = rf"fp8parity: waiting for {re.escape(str(path))}, held by {HOLDER}\n"
    assert re.fullmatch(said, capfd.readouterr().err)


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
        (Use(58), Use(10), False),
        (Use(64), Use(20), True),
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


def test_runs_take_their_gpu_in_the_order_in_which_they_came(tmp_path):
    (tmp_path / ".locks" / "gpu-0").mkdir(parents=True)
    (tmp_path / ".locks" / "gpu-0" / "0.turn").touch()  # of a process that was killed while it waited
    order: list[int] = []

    @contextmanager
    def noted(number: int, use: Use) -> Iterator[None]:
        with gpu(tmp_path, use):
            order.append(number)
            yield

    with ExitStack() as stack:
        with gpu(tmp_path, ALONE):
            for number, use in enumerate([Use(60.0), Use(), Use(40.0), ALONE, Use(), Use(20.0)]):
                stack.enter_context(holding(noted(number, use))).end.set()
                turns = tmp_path / ".locks" / "gpu-0"
                while len(list(turns.glob("*.turn"))) <= number:
                    time.sleep(0.01)
        while len(order) < 6:
            time.sleep(0.01)
    assert order == sorted(order)


class Killed(BaseException):
    """Ends a writer at once."""


@pytest.fixture(autouse=True)
def new_process() -> None:
    files._remove_leftovers.cache_clear()


def kill(*_: object) -> None:
    raise Killed


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_write_makes_folders_and_a_readable_file(tmp_path):
    path = tmp_path / "a" / "b" / "c.json"
    assert files.write(path, "new").read_text() == "new"
    assert mode_of(path) == 0o644
    assert files.write(path, b"newer").read_bytes() == b"newer"
    assert [p.name for p in path.parent.iterdir()] == ["c.json"]


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_write_interrupted_leaves_the_old_file(tmp_path, monkeypatch, moment):
    path = files.write(tmp_path / "report.html", "old")
    monkeypatch.setattr(os, moment, kill)
    with pytest.raises(Killed):
        files.write(path, "new" * 100_000)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(("age", "stays"), [(10, True), (7200, False)])
def test_leftovers_of_killed_writers_are_removed(tmp_path, age, stays):
    file, part, other = tmp_path / ".a.json.x1.fp8parity", tmp_path / ".set.x2.fp8parity", tmp_path / ".gitignore"
    part.mkdir()
    for path in (file, part / "a.json", other):
        path.write_text("half")
    for path in (file, part, other):
        os.utime(path, (time.time() - age,) * 2)
    files.write(tmp_path / "b.json", "new")
    assert [file.exists(), part.exists(), other.exists()] == [stays, stays, True]


def test_full_disk_is_an_error_with_the_path(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot write .*a\.json: No space left on device"):
        files.write(tmp_path / "a.json", "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False], ids=["links", "no hard links"])
@pytest.mark.parametrize("exists", [False, True])
def test_new_file_never_replaces_another(tmp_path, monkeypatch, links, exists):
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    path = tmp_path / "a"
    if exists:
        path.write_text("old")
        with pytest.raises(OSError, match="cannot write .*a: File exists"):
            files.write(path, "new", new=True)
    else:
        files.write(path, "new", new=True)
    assert path.read_text() == ("old" if exists else "new")
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_is_whole_or_absent(tmp_path):
    place = tmp_path / "a" / "set"

    def fail() -> None:
        with files.folder(place) as made:
            (made / "a").write_text("a")
            kill()

    with pytest.raises(Killed):
        fail()
    assert list(place.parent.iterdir()) == []
    with files.folder(place) as made:
        (made / "a").write_text("a")
        assert not place.exists()
    assert (place / "a").read_text() == "a"
    assert mode_of(place) == 0o755


def test_killed_update_of_the_numbers_leaves_a_readable_folder(tmp_path, monkeypatch):
    """Planted: the new table is written, and the process is killed before the sources are."""
    key = NumberKey("gemm", "m", "w", "tiny", "te-current", Execution.NATIVE)

    def update(value: float, source: str) -> None:
        numbers = {"shared": {key: Number(value, source)}}
        measured_numbers.write(tmp_path, MeasuredNumbers(numbers, (Source(source, "set", "d", "p", "0"),)))

    replace, left = os.replace, [1, 1]
    update(1.0, "old")
    monkeypatch.setattr(os, "replace", lambda *names: replace(*names) if left and left.pop() else kill())
    with pytest.raises(Killed):
        update(2.0, "new")
    [table] = measured_numbers.load(tmp_path).tables.values()
    assert [n.value for n in table.values()] == [2.0]
