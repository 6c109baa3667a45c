"""Records, goldens and tolerances on disk: whole or not at all, and their faults named."""

import errno
import json
import os
from pathlib import Path

import pytest
from fp8parity import golden, tolerances
from fp8parity.golden import changes, refuse, update
from fp8parity.record import NonFinite
from fp8parity.storage import file_name, load_record, load_records, read_json, write_json


def test_records_keep_every_bit(trajectory, tmp_path):
    made = trajectory(loss=[0.1 + 2**-54, 1 / 3] * 6)
    path = write_json(tmp_path / file_name(made.cell, "seed0"), made)
    assert load_record(path) == made
    assert load_records(tmp_path) == [made]
    assert path.name == "bf16-nano-native-synthetic-seed0.json"


def test_non_finite_losses_survive(trajectory, tmp_path):
    made = trajectory(loss=[float("inf"), float("-inf")] * 6, grad_norm=[float("nan")] * 12)
    found = load_record(write_json(tmp_path / "r.json", made))
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


def test_a_foreign_file_and_a_future_schema(trajectory, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ValueError, match="no checksum"):
        read_json(tmp_path / "x.json")
    path = write_json(tmp_path / "r.json", trajectory(schema_version=99))
    with pytest.raises(ValueError, match="schema 99 is newer"):
        load_record(path)


def test_an_unknown_key_is_named(trajectory, tmp_path):
    from fp8parity.storage import checksum

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


def test_goldens_refuse(trajectory, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    runs = [trajectory(seed=s) for s in range(3)]
    assert refuse(runs, 3) is None
    assert "asks for 8" in refuse(runs, 8)
    assert "never becomes its own reference" in refuse([trajectory("te-current")], 1)
    assert "non-finite at step 2 (x)" in refuse([trajectory(non_finite=NonFinite(step=2, where="x"))], 1)
    dirty = runs[0].provenance.model_copy(update={"dirty": True})
    assert "uncommitted" in refuse([trajectory(provenance=dirty)], 1)
    monkeypatch.setenv("CI", "true")
    assert "CI never records" in refuse(runs, 3)


def test_updates_are_signed(trajectory, tmp_path):
    runs = [trajectory(seed=s) for s in range(2)]
    _, lines = update(tmp_path, runs, [])
    tail = sum(sum(r.loss[-4:]) for r in runs) / 8
    assert lines == [f"nano on synthetic: new, 2 seeds, tail loss {tail:.4f}"]
    assert update(tmp_path, runs, [])[1] == ["nano on synthetic: unchanged to the bit"]
    worse = [trajectory(seed=0, gap=0.01), runs[1], trajectory(seed=2)]
    lines = update(tmp_path, worse, [])[1]
    assert any("seed 0 tail loss" in line and "(+1.000%)" in line for line in lines)
    assert any("seeds 2 -> 3" in line for line in lines)
    assert any("seed 2 new" in line for line in lines)
    assert golden.load(tmp_path, "nano", "other") is None
    stored = golden.load(tmp_path, "nano", "synthetic")
    assert changes(stored, stored) == ["nano on synthetic: unchanged to the bit"]


LOSS = '[[loss]]\nmargin = 0.005\nwhy = "long enough"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[loss]\n", r"t.toml: .*line 1"),
        ("[[los]]\n", "unknown table 'los'"),
        (LOSS + "[[loss]]\nmargin = 0.005\n", r"t.toml:4: \[\[loss\]\] key why: Field required"),
        (LOSS.replace("long enough", "x"), r"t.toml:1: \[\[loss\]\] key why"),
        (LOSS.replace("0.005", "-1"), r"t.toml:1: \[\[loss\]\] key margin"),
        (LOSS + "seeds = [1, 2]\n", "start at 2 or more"),
        (LOSS + "margn = 1\n", r"key margn: Extra inputs"),
        (LOSS + '[[bound]]\ncheck = "a"\nmetric = "b"\nlow = 1\nwhy = "long enough"\n', "low needs high"),
        (LOSS + '[[bound]]\ncheck = "a"\nmetric = "b"\nwhy = "long enough"\n', "either expect and band"),
    ],
)
def test_malformed_tolerances(tmp_path, text, message):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        tolerances.load(tmp_path / "t.toml")


def test_rows_of_the_project(trajectory):
    table = tolerances.load(Path(__file__).parents[1] / "golden" / "tolerances.toml")
    cell = trajectory("te-nvfp4").cell
    assert table.loss_row(cell).margin == 0.015
    assert table.loss_row(trajectory("ao-rowwise").cell).margin == 0.005
    assert table.least_seeds(cell.model_copy(update={"model": "1b"})) == 2
    assert table.least_seeds(cell) == 8
    assert all(row.why for row in [*table.loss, *table.bound, *table.golden])


def test_escalation_ends_where_the_golden_does():
    row = tolerances.LossRow(margin=0.005, seeds=(3, 5, 8), why="long enough")
    assert [row.within(n).seeds for n in (2, 3, 4, 5, 8, 9)] == [(2,), (3,), (3, 4), (3, 5), (3, 5, 8), (3, 5, 8)]


def test_no_row_is_an_error(tmp_path, trajectory):
    (tmp_path / "t.toml").write_text(LOSS.replace("margin", 'recipe = "x"\nmargin'))
    with pytest.raises(ValueError, match=r"no \[\[loss\]\] row matches bf16-nano-native"):
        tolerances.load(tmp_path / "t.toml").loss_row(trajectory().cell)
