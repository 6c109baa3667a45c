"""Runs in the stores of W&B, MLflow and trackio."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from curves import curve
from fp8parity import runs
from fp8parity.cli import main

RUNS = {"bf16": curve(steps=200), "fp8": curve(steps=200, chaos=1), "gap": curve(steps=200, chaos=1).with_gap(0.01)}
RUNS["nan"] = curve(steps=200, chaos=1)
RUNS["nan"].loss[120:] = [math.nan] * 80


def mlflow_files(folder: Path) -> Path:
    for i, (name, made) in enumerate(RUNS.items()):
        run = folder / "mlruns" / "0" / f"{i:032x}"
        (run / "metrics" / "train").mkdir(parents=True)
        (run / "meta.yaml").write_text(f"artifact_uri: file:///nowhere\nrun_name: {name}\nstatus: 3\n")
        (run / "metrics" / "train" / "loss").write_text("".join(f"17 {x} {s}\n" for s, x in enumerate(made.loss)))
        (run / "metrics" / "lr").write_text("".join(f"17 0.001 {s}\n" for s in range(200)))
    return folder / "mlruns"


def mlflow_database(folder: Path) -> Path:
    with closing(sqlite3.connect(folder / "mlflow.db")) as database:
        database.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT)")
        database.execute(
            "CREATE TABLE metrics (key TEXT, value REAL, timestamp INT, run_uuid TEXT, step INT, is_nan BOOLEAN)"
        )
        for name, made in RUNS.items():
            database.execute("INSERT INTO runs VALUES (?, ?)", (f"id {name}", name))
            values = [("loss", 0.0 if x != x else x, s, f"id {name}", s, x != x) for s, x in enumerate(made.loss)]
            database.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", values)
        database.commit()
    return folder / "mlflow.db"


def trackio(folder: Path) -> Path:
    """With the bytes that orjson writes."""
    with closing(sqlite3.connect(folder / "project.db")) as database:
        database.execute("CREATE TABLE metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INT, metrics TEXT)")
        for name, made in RUNS.items():
            values = [(name, s, json.dumps({"train/loss": x, "lr": 1e-3}).encode()) for s, x in enumerate(made.loss)]
            database.executemany("INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", values)
        database.commit()
    return folder / "project.db"


def framed(records: Iterable[bytes]) -> bytes:
    """Frame records as LevelDB does: parts of blocks of 32 KiB, with a header of 7 bytes each."""
    out = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        first = True
        while first or record:
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            part, record = record[: room - 7], record[room - 7 :]
            kind = (1 if first else 4) if not record else (2 if first else 3)
            out += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(out)


class FakeRecord:
    """A record of W&B, of JSON instead of a protocol buffer."""

    def ParseFromString(self, content: bytes) -> None:
        items = [SimpleNamespace(key=k, nested_key=[], value_json=v) for k, v in json.loads(content).items()]
        self.history = SimpleNamespace(item=items)

    def WhichOneof(self, _: str) -> str:
        return "history" if any(item.key == "_step" for item in self.history.item) else "run"


def wandb(folder: Path) -> Path:
    for name, made in RUNS.items():
        file = folder / "wandb" / f"offline-run-20261122_090000-{name}" / f"run-{name}.wandb"
        file.parent.mkdir(parents=True)
        rows = (
            {"_step": str(s), "train/loss": json.dumps(x), "text": json.dumps("x" * 900)}
            for s, x in enumerate(made.loss)
        )
        file.write_bytes(framed(json.dumps(row).encode() for row in ({"name": name}, *rows)))
    return folder / "wandb"


@pytest.fixture
def wandb_package(monkeypatch):
    for name in ("wandb", "wandb.proto", "wandb.proto.wandb_internal_pb2"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["wandb.proto"].wandb_internal_pb2 = SimpleNamespace(Record=FakeRecord)  # type: ignore[attr-defined]


@pytest.mark.parametrize("store", [mlflow_files, mlflow_database, trackio, wandb])
def test_named_run_of_a_store_is_read(store, wandb_package, tmp_path, capsys):
    path = store(tmp_path)
    run = runs.read(Path(f"{path}#bf16"))
    assert (run.points, run.loss) == (list(range(200)), RUNS["bf16"].loss)
    codes = [main(["verdict", f"{path}#bf16", f"{path}#{name}"]) for name in ("fp8", "gap", "nan")]
    assert codes == [0, 1, 1] and "not finite at step 120 (80 in all)" in capsys.readouterr().out
    assert main(["verdict", str(path), f"{path}#fp8"]) == 2
    assert "it holds the runs bf16, fp8, gap, nan; name one:" in capsys.readouterr().err.replace(
        "fp8, bf16", "bf16, fp8"
    )
    with pytest.raises(ValueError, match="it holds the runs"):
        runs.read(Path(f"{path}#other"))


def test_wandb_log_that_was_cut_is_read_to_its_last_record(wandb_package, tmp_path):
    file = next((wandb(tmp_path) / "offline-run-20261122_090000-fp8").glob("*.wandb"))
    file.write_bytes(file.read_bytes()[:100_000])
    run = runs.read(file.parent)
    assert 80 < len(run.points) < 120 and run.loss == RUNS["fp8"].loss[: len(run.points)]


def test_stores_that_cannot_be_read_are_refused_with_the_way_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "wandb.proto", None)
    assert main(["import", f"{wandb(tmp_path)}#fp8"]) == 2
    assert "pip install 'fp8-parity[wandb]'" in capsys.readouterr().err
    with closing(sqlite3.connect(tmp_path / "other.db")) as database:
        database.execute("CREATE TABLE metrics (id INT)")
    assert main(["import", str(tmp_path / "other.db")]) == 2
    assert "a database of another program; export the run as CSV" in capsys.readouterr().err
