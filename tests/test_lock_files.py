"""Lock files within one process: two descriptors of a file hold it against each other as two processes do."""

from __future__ import annotations

import errno
import os
import re
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fp8parity.records import locks

HOLDER = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a" / "b" / ".lock"


def waiter(path: Path, seen: list[bool], *, quiet: bool = False) -> threading.Thread:
    """A thread that waits for the lock, and notes whether the lock file exists while it holds it."""

    def wait() -> None:
        with locks.locked(path, quiet=quiet):
            seen.append(path.exists())

    made = threading.Thread(target=wait, daemon=True)
    made.start()
    return made


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """It is set when somebody has to wait: the lock was tried, is not free, and the holder was told."""
    found, real = threading.Event(), locks.fcntl.flock

    def flock(file: Any, how: int) -> None:
        if not how & (locks.fcntl.LOCK_NB | locks.fcntl.LOCK_UN):
            found.set()
        real(file, how)

    monkeypatch.setattr(locks.fcntl, "flock", flock)
    return found


def held_elsewhere(path: Path) -> bool:
    """Whether somebody holds the lock, seen from another descriptor."""
    file = locks._acquired(path, locks.fcntl.LOCK_EX, wait=False)
    if file is not None:
        locks._release(path, file)
    return file is None


def test_a_lock_names_its_holder_and_goes_with_it(path):
    with locks.locked(path):
        assert re.fullmatch(HOLDER, path.read_text())
        assert held_elsewhere(path)
    assert not path.exists()
    assert not held_elsewhere(path)


@pytest.mark.parametrize("quiet", [False, True])
def test_who_waits_says_once_for_whom_and_then_holds_a_file_that_is_there(path, capfd, quiet, waits):
    """The first holder removes the file that the second one waits for."""
    seen: list[bool] = []
    with locks.locked(path):
        thread = waiter(path, seen, quiet=quiet)
        assert waits.wait(60)
        assert seen == []
    thread.join(60)
    assert seen == [True]
    assert not path.exists()
    said = capfd.readouterr().err
    assert re.fullmatch("" if quiet else rf"fp8parity: waiting for {re.escape(str(path))}, held by {HOLDER}\n", said), (
        said
    )


def test_a_holder_that_has_not_signed_yet_is_told_so(path, capfd, waits):
    seen: list[bool] = []
    with locks.locked(path):
        path.write_text(" ")
        thread = waiter(path, seen)
        assert waits.wait(60)
    thread.join(60)
    assert capfd.readouterr().err == f"fp8parity: waiting for {path}, held by a process that has not yet said which\n"


def test_a_lock_file_that_somebody_removed_is_no_error(path):
    with locks.locked(path):
        path.unlink()
    assert not path.exists()


def test_shared_holders_stay_together_and_keep_one_alone_out(path):
    with locks.locked(path, shared=True):
        with locks.locked(path, shared=True):
            assert held_elsewhere(path)
        assert path.exists()
        assert held_elsewhere(path)
    assert not path.exists()


def test_a_golden_folder_that_does_not_exist_is_not_made(tmp_path):
    with locks.golden(tmp_path / "golden"):
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "golden").mkdir()
    with locks.golden(tmp_path / "golden"):
        [lock] = (tmp_path / "golden").iterdir()
        assert lock.name == ".lock.fp8parity"
        assert held_elsewhere(lock)


def test_some_of_several_locks_are_held_and_no_more(tmp_path):
    paths = [tmp_path / name for name in "abcd"]
    with locks.locked(paths[1]), locks.locked_some(paths, 2, pytest.fail):
        assert [held_elsewhere(p) for p in paths] == [True, True, True, False]
    assert not any(p.exists() for p in paths)


def test_who_waits_for_some_keeps_what_it_has_and_asks_again(tmp_path):
    paths, asked = [tmp_path / name for name in "ab"], []
    with ExitStack() as other:
        other.enter_context(locks.locked(paths[0]))

        def waits() -> None:
            asked.append([held_elsewhere(p) for p in paths])
            if len(asked) == 2:
                other.close()

        with locks.locked_some(paths, 2, waits):
            assert asked == [[True, True], [True, True]]
            assert all(map(held_elsewhere, paths))
    assert not any(p.exists() for p in paths)


def test_who_waits_twice_says_it_once(path, capfd, monkeypatch):
    """Another process holds the file, removes it, and a third one holds the next."""
    held, kept = [True, True], [False, True]
    path.parent.mkdir(parents=True)
    real = locks._try
    monkeypatch.setattr(locks, "_try", lambda file, how: not held.pop() if held else real(file, how))
    monkeypatch.setattr(locks, "_is", lambda file, path: kept.pop(0))
    with locks.locked(path):
        assert not held and not kept
    assert capfd.readouterr().err.count("waiting for") == 1


def test_a_full_disk_is_named_also_if_the_lock_file_is_gone(path, monkeypatch):
    def full(*_: object) -> int:
        path.unlink()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=f"cannot write {re.escape(str(path))}: No space left"), locks.locked(path):
        pass
