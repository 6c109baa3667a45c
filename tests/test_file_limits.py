"""A file of exactly the limit is read whole, and one byte more is refused, whatever size the file system or the archive tells."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from fp8parity.records import files

LIMIT = 2**20
WHOLE, LARGER = b"x" * LIMIT, b"x" * (LIMIT + 1)
WORDS = "larger than 1 MiB, the most that is read"


@pytest.fixture(autouse=True)
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_LIMIT", LIMIT)


@pytest.fixture(params=["the size is known", "the size is not known"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can grow after its size was asked for."""
    if request.param == "the size is not known":
        monkeypatch.setattr(files, "_regular", lambda path, limit: None)


def file_of(tmp_path: Path, content: bytes) -> Path:
    (path := tmp_path / "record.json").write_bytes(content)
    return path


def archive_of(tmp_path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path := tmp_path / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("record.json", content)
    return path


def test_a_file_of_the_limit_is_read_whole(tmp_path, known):
    assert files.read_bytes(file_of(tmp_path, WHOLE)) == WHOLE


def test_a_larger_file_is_refused(tmp_path, known):
    path = file_of(tmp_path, LARGER)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: {WORDS}$"):
        files.read_bytes(path)


def test_a_member_of_the_limit_is_read_whole(tmp_path):
    path = archive_of(tmp_path, WHOLE)
    assert list(files.members(path, lambda name: True)) == [(path / "record.json", WHOLE)]


def test_a_larger_member_is_refused(tmp_path):
    path = archive_of(tmp_path, LARGER)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path / 'record.json'))}: {WORDS}$"):
        list(files.members(path, lambda name: True))


def test_an_archive_may_have_the_size_of_its_limit(tmp_path, monkeypatch):
    path = archive_of(tmp_path, WHOLE)
    monkeypatch.setattr(files, "ZIP_LIMIT", path.stat().st_size)
    assert len(list(files.members(path, lambda name: True))) == 1
    monkeypatch.setattr(files, "ZIP_LIMIT", path.stat().st_size - 1)
    with pytest.raises(ValueError, match="the most that is read"):
        list(files.members(path, lambda name: True))


def test_an_archive_may_have_as_many_members_as_the_limit(tmp_path, monkeypatch):
    with zipfile.ZipFile(path := tmp_path / "set.zip", "w") as archive:
        for name in "abc":
            archive.writestr(name, name)
    monkeypatch.setattr(files, "MEMBERS_LIMIT", 3)
    assert [content for _, content in files.members(path, lambda name: True)] == [b"a", b"b", b"c"]
    monkeypatch.setattr(files, "MEMBERS_LIMIT", 2)
    with pytest.raises(ValueError, match="3 members; 2 are the most that are read"):
        list(files.members(path, lambda name: True))
