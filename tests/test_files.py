"""Records and loss goldens on disk: whole or not at all, and their faults named."""

import errno
import json
import os

import pytest
from fp8parity.records.storage import checksum, load_record, load_records, name_of, read_json, write_json
from narrowed import load_trajectory


def test_records_keep_every_bit(trajectory, tmp_path):
    made = trajectory(loss=[0.1 + 2**-54, 1 / 3] * 6)
    path = write_json(tmp_path / name_of(made), made)
    assert load_record(path) == made
    assert load_records(tmp_path) == [made]
    assert path.name == "bf16-nano-native-topics-seed0.json"


def test_non_finite_losses_survive(trajectory, tmp_path):
    made = trajectory(loss=[float("inf"), float("-inf")] * 6, grad_norm=[float("nan")] * 12)
    found = load_trajectory(write_json(tmp_path / "r.json", made))
    assert found.loss == made.loss
    assert all(x != x for x in found.grad_norm)


def test_tampering_is_noticed(trajectory, tmp_path):
    path = write_json(tmp_path / "r.json", trajectory())
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ValueError, match=r"r.json: its checksum does not match"):
        load_record(path)


def test_truncation_names_the_line(trajectory, tmp_path):
    path = write_json(tmp_path / "r.json", trajectory())
    path.write_text(path.read_text()[:200])
    with pytest.raises(ValueError, match=r"r.json:\d+: not valid JSON"):
        load_record(path)


def test_a_foreign_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match="no checksum"):
        read_json(tmp_path / "x.json")


def test_a_future_schema_is_refused(trajectory, tmp_path):
    path = write_json(tmp_path / "r.json", trajectory(schema_version=99))
    with pytest.raises(ValueError, match="schema 99 is newer"):
        load_record(path)


def test_an_unknown_key_is_named(trajectory, tmp_path):
    path = write_json(tmp_path / "r.json", trajectory())
    data = json.loads(path.read_text())
    data["surprise"] = 1
    data["checksum"] = checksum(data)
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"key trajectory.surprise"):
        load_record(path)


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_no_part(trajectory, tmp_path, monkeypatch, fails):
    path = write_json(tmp_path / "r.json", trajectory())
    old = path.read_text()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, fails, full)
    with pytest.raises(OSError, match=r"cannot write .*r.json: No space left"):
        write_json(path, trajectory(seed=5))
    assert path.read_text() == old
    assert os.listdir(tmp_path) == ["r.json"]
