"""Records and loss goldens on disk: whole or not at all, and their faults named."""

import errno
import json
import math
import os

import pytest
from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden, changes, from_runs, path_of, refuse, store
from fp8parity.records.schema import NonFinite
from fp8parity.records.storage import checksum, load_record, load_records, name_of, read_json, write_json
from narrowed import load_trajectory, some


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


def test_whole_runs_of_bf16_may_become_a_golden(trajectory):
    assert refuse([trajectory(seed=s) for s in range(3)], 3) is None


@pytest.mark.parametrize(
    ("made", "least", "words"),
    [
        ({}, 8, "asks for 8"),
        ({"recipe": "te-current"}, 1, "never becomes its own reference"),
        ({"non_finite": NonFinite(step=2, where="x")}, 1, "non-finite at step 2 (x)"),
        ({"loss": [math.nan] * 12}, 1, "key seeds.0.loss.0: Input should be"),
        ({"grad_norm": [1.0] * 11}, 1, "key seeds.0: 12 losses and 11 gradient norms"),
        ({"validation": [(11, math.inf)]}, 1, "key seeds.0.validation.0.1: Input should be"),
        ({"schedule": {"steps": 12, "tail": -5}}, 1, "schedule: tail is -5"),
    ],
)
def test_goldens_refuse(trajectory, made, least, words):
    assert words in some(refuse([trajectory(**made)], least))


def test_goldens_refuse_an_uncommitted_tree(trajectory):
    dirty = trajectory().provenance.model_copy(update={"dirty": True})
    why = some(refuse([trajectory(provenance=dirty)], 1))
    assert why == "the working tree has uncommitted changes; commit first, so that the golden names its code"


def test_goldens_refuse_a_ci(trajectory, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert "CI never records" in some(refuse([trajectory(seed=s) for s in range(3)], 3))


def test_a_refused_golden_is_not_written(trajectory, tmp_path):
    with pytest.raises(ValueError, match="golden of nano refused: 1 seeds; .* asks for 2"):
        store(tmp_path, [trajectory()], [], 2)
    assert not list(tmp_path.iterdir())


def test_a_new_golden_is_told(trajectory, tmp_path):
    runs = [trajectory(seed=s) for s in range(2)]
    tail = sum(sum(r.loss[-4:]) for r in runs) / 8
    assert store(tmp_path, runs, [], 2) == [f"nano on topics: new, 2 seeds, tail loss {tail:.4f}"]
    assert store(tmp_path, runs, [], 2) == ["nano on topics: unchanged to the bit"]


def test_updates_are_signed(trajectory, tmp_path):
    runs = [trajectory(seed=s) for s in range(2)]
    store(tmp_path, runs, [], 2)
    worse = [trajectory(seed=0, gap=0.01), runs[1], trajectory(seed=2)]
    lines = store(tmp_path, worse, [], 2)
    assert any("seed 0 tail loss" in line and "(+1.000%)" in line for line in lines)
    assert any("seeds 2 -> 3" in line for line in lines)
    assert any("seed 2: new, " in line for line in lines)


def test_goldens_are_found_by_model_and_corpus(trajectory, tmp_path):
    store(tmp_path, [trajectory(seed=s) for s in range(2)], [], 2)
    found = store.load(tmp_path, Golden)
    assert set(found) == {("nano", "topics")}
    stored = found["nano", "topics"]
    assert changes(stored, stored) == ["nano on topics: unchanged to the bit"]


def test_a_golden_under_another_one_s_name_is_refused(trajectory, tmp_path):
    write_json(path_of(tmp_path, "other", "topics"), from_runs([trajectory()], []))
    with pytest.raises(ValueError, match=r"other-topics.json: is of nano on topics; rename it"):
        store.load(tmp_path, Golden)
