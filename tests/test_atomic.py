"""Writers that are killed, interrupted or alone on a full disk leave the old file or the new one."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey, Source
from fp8parity.records import files, sets
from fp8parity.records.cell import Execution
from fp8parity.training import provenance


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


def test_write_keeps_a_link_and_changes_its_target(tmp_path):
    (tmp_path / "share").mkdir()
    (tmp_path / "latest.html").symlink_to(tmp_path / "share" / "a.html")
    files.write(tmp_path / "latest.html", "new")
    assert (tmp_path / "latest.html").is_symlink()
    assert (tmp_path / "share" / "a.html").read_text() == "new"


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


def test_merge_does_not_replace_a_zip_written_meanwhile(trajectory, tmp_path, monkeypatch):
    """Planted: another merge ends after this one has looked for the file."""
    out, sync = tmp_path / "out.zip", os.fsync

    def later(handle: int) -> None:
        sync(handle)
        out.write_bytes(b"the other one")

    monkeypatch.setattr(os, "fsync", later)
    with pytest.raises(OSError, match=r"cannot write .*out.zip: File exists"):
        sets.save([trajectory()], out)
    assert out.read_bytes() == b"the other one"
    assert [p.name for p in tmp_path.iterdir()] == ["out.zip"]


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


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for command in ("init -q", "-c user.name=t -c user.email=t@t commit -q --allow-empty -m x"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FP8PARITY_COMMIT", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    "left", [".tiny-topics.json.x.fp8parity", ".lock.fp8parity", ".holder-lock.fp8parity", ".m.x.fp8parity/a.json"]
)
def test_temporary_files_and_locks_leave_a_tree_clean(repository, left):
    path = repository / "golden" / "loss" / left
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert provenance.commit.__wrapped__()[1] is False
    (repository / "golden" / "loss" / "tiny-topics.json").write_text("")
    assert provenance.commit.__wrapped__()[1] is True


def test_named_commit_hides_no_changes_of_its_own_tree(repository, monkeypatch):
    """A script that exports the commit of its clone says nothing of changes there; another commit is that of other code."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    for changed in (False, True):
        for given, wanted in {
            head: (head, changed),
            "0123abc": ("0123abc", False),
            "0123abc-dirty": ("0123abc", True),
        }.items():
            monkeypatch.setenv("FP8PARITY_COMMIT", given)
            assert provenance.commit.__wrapped__() == wanted
        (repository / "changed.py").write_text("")
