"""Files of records: kept to the bit, with limits, and each fault named with its file."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
import trajectories
from fp8parity.records import files, manifest
from fp8parity.records.manifest import Manifest
from fp8parity.records.storage import (
    checksum,
    load_record,
    load_records,
    name_of,
    read_json,
    to_json,
    write_json,
)

RUN = trajectories.made("te-current", 3)
NAME = "te-current-nano-emulated-topics-seed3.json"


def content(**changes: Any) -> dict[str, Any]:
    """What the file of a run holds, with other values and with a checksum that fits."""
    data = {**json.loads(RUN.model_dump_json()), **changes}
    return data | {"checksum": checksum(data)}


def test_record_is_kept_to_the_bit(tmp_path):
    odd = {"loss": [float("inf"), 0.1 + 2**-54, 1 / 3] * 4, "grad_norm": [float("nan")] * 12}
    made = RUN.model_copy(update=odd)
    path = write_json(tmp_path / NAME, made)
    assert load_record(path).model_dump_json() == made.model_dump_json() and name_of(made) == NAME
    assert read_json(path) == json.loads(made.model_dump_json())
    assert path.read_text().startswith('{\n "')


def test_checksum_is_of_compact_sorted_json():
    hashed = "721ef82f2d6c0997bffb7a8ab3f40f8fb45b0b52ce2af3afa6b0f05efbdc317f"
    assert checksum({"b": [1, 2], "a": "x"}) == checksum({"a": "x", "checksum": "?", "b": [1, 2]}) == hashed


SCHEDULE = {"steps": 12, "tail": 4}
ODD_VERSIONS: list[object] = [None, "3", 2, True, 10**30]
REFUSED: list[tuple[str | dict[str, Any], str]] = [
    *[(text, "no checksum; fp8parity did not write this file") for text in ("{}", "3", '["checksum"]')],
    (json.dumps(content() | {"seed": 4}), "its checksum does not match its content"),
    (json.dumps(content())[:200], "not valid JSON"),
    ("[" * 100_000, "its values are nested too deeply"),
    *[({"schema_version": v}, "its schema_version is ") for v in ODD_VERSIONS],
    ({"surprise": 1}, "key trajectory.surprise"),
    ({"cell": {"model": "m"}}, "key trajectory.cell.recipe: Field required"),
    ({"loss": []}, "key trajectory: grad_norm holds 12 values, and loss 0"),
    ({"validation": [[5, 1.0], [5, 1.0]]}, "the steps of its validations do not rise: [5, 5]"),
    ({"validation": [[12, 1.0]]}, "the last validation is at step 12 of 12"),
    ({"validation": []}, "validation is empty, and the run did not stop early"),
    ({"schedule": {**SCHEDULE, "steps": 0}}, "schedule.steps is 0; it is a number of steps, from 1 to 10000000"),
    ({"schedule": {"steps": 12}}, "schedule.tail is None"),
    ({"schedule": {**SCHEDULE, "steps": 11}}, "loss holds 12 values, and the schedule has 11 steps"),
]


@pytest.mark.parametrize(("data", "words"), REFUSED)
def test_first_fault_of_a_file_is_named(tmp_path, data, words):
    path = tmp_path / "x.json"
    path.write_text(data if isinstance(data, str) else json.dumps(content(**data)))
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        load_record(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (NAME, True),
        (NAME.replace(".json", "-0123abcd.json"), True),
        ("x.json", False),
        (NAME.replace("seed3", "seed4"), False),
        (NAME.replace(".json", "-0123ABCD.json"), False),
    ],
)
def test_file_has_the_name_of_its_record(tmp_path, name, read):
    write_json(tmp_path / name, RUN)
    if read:
        assert load_records(tmp_path) == [RUN]
    else:
        with pytest.raises(ValueError, match=re.escape(f"{name} holds te-current-nano-emulated seed3; name it {NAME}")):
            load_records(tmp_path)


def note(**changes: Any) -> Manifest:
    made = Manifest(
        session="a/1", options=[], started="s", ended="e", status="ok", provenance=RUN.provenance, selected=[]
    )
    return made.model_copy(update=changes)


def test_zip_is_read_like_a_folder(tmp_path):
    runs = [trajectories.made(seed=s) for s in (2, 0, 1)]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for run in runs:
            write_json(tmp_path / "a" / name_of(run), run)
            archive.writestr(name_of(run), to_json(run))
        archive.writestr(note().name, to_json(note()))
        archive.writestr("notes.txt", "")
    manifest.write(tmp_path / "a", note())
    for path in (tmp_path / "a", tmp_path / "a.zip"):
        assert load_records(path) == sorted(runs, key=lambda r: r.seed)
        assert manifest.load([path]) == [note()]
    (tmp_path / "b").mkdir()
    manifest.write(tmp_path / "b", note())
    with pytest.raises(ValueError, match="b holds no records"):
        load_records(tmp_path / "b")


def test_manifests_of_one_session_are_equal_or_refused(tmp_path):
    for name, status in (("a", "ok"), ("b", "ok"), ("c", "failed")):
        assert manifest.write(tmp_path / name, note(status=status)).name == "manifest-a_1.json"
    assert manifest.load([tmp_path / "a", tmp_path / "b"]) == [note()]
    with pytest.raises(ValueError, match="are different manifests of one session"):
        manifest.load([tmp_path / "a", tmp_path / "b", tmp_path / "c"])


def archive_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.json", data)
    return path


def test_file_above_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FILE_LIMIT", 1024)
    path = tmp_path / "a.json"
    for size in (1024, 1025):
        path.write_bytes(b"x" * size)
        found = archive_of(tmp_path / f"{size}.zip", a=b"x" * size)
        if size == 1024:
            assert len(files.read_bytes(path)) == 1024 and len(list(files.members(found, lambda name: True))) == 1
        else:
            with pytest.raises(ValueError, match=r"a.json: larger than 0.000976562 MiB"):
                files.read_bytes(path)
            with pytest.raises(ValueError, match=r"1025.zip/a.json: larger than"):
                list(files.members(found, lambda name: True))


def test_archive_above_a_limit_is_refused(tmp_path, monkeypatch):
    path = archive_of(tmp_path / "set.zip", a=b"a", b=b"b", c=b"c")
    for name, limit in (("MEMBERS_LIMIT", 3), ("ZIP_LIMIT", path.stat().st_size)):
        monkeypatch.setattr(files, name, limit)
        assert [data for _, data in files.members(path, lambda name: True)] == [b"a", b"b", b"c"]
        monkeypatch.setattr(files, name, limit - 1)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            list(files.members(path, lambda name: True))
        monkeypatch.setattr(files, name, limit)
