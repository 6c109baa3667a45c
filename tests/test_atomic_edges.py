"""Modes, ages and errors of atomic writing, at their edges."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
from fp8parity.records import atomic


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was cleaned yet."""
    monkeypatch.setattr(atomic, "_cleaned", set())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_others_may_read_a_file_and_only_its_owner_may_write_it(tmp_path):
    assert mode_of(atomic.write(tmp_path / "a.json", "new")) == 0o644


def test_others_may_open_a_folder_and_only_its_owner_may_change_it(tmp_path):
    with atomic.folder(tmp_path / "set") as made:
        (made / "a").write_text("a")
    assert mode_of(tmp_path / "set") == 0o755


def test_folders_on_the_way_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "c.json"
    assert atomic.write(path, "new").read_text() == "new"
    with atomic.folder(tmp_path / "d" / "e" / "set") as made:
        (made / "a").write_text("a")
    assert (tmp_path / "d" / "e" / "set" / "a").read_text() == "a"


@pytest.mark.parametrize(("age", "stays"), [(3600, True), (3600.5, False)])
def test_a_leftover_of_an_older_version_is_older_than_an_hour(tmp_path, monkeypatch, age, stays):
    left = tmp_path / ".a.json.abcdefgh"
    left.write_text("half")
    os.utime(left, (1e9, 1e9))
    monkeypatch.setattr(atomic.time, "time", lambda: 1e9 + age)
    atomic.write(tmp_path / "b.json", "new")
    assert left.exists() == stays


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EEXIST])
def test_only_a_file_system_without_links_gets_a_rename(tmp_path, monkeypatch, number):
    """Another error of the link is the error of the writer: a rename could replace the file of another process."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match=f"cannot write .*a.json: {os.strerror(number)}") as error:
        atomic.write(tmp_path / "a.json", "new", new=True)
    assert error.value.errno == number
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_hides_no_error(tmp_path, monkeypatch):
    """The body of a folder fails, and its temporary folder cannot be removed: the error of the body is told."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def fails() -> None:
        with atomic.folder(tmp_path / "set"):
            monkeypatch.setattr(os, "rmdir", refused)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert not (tmp_path / "set").exists()
