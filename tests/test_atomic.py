"""Writers that are killed, interrupted or alone on a full disk leave the old file or the new one."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey, Source
from fp8parity.records import files
from fp8parity.records.cell import Execution


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
