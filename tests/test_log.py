"""What a gate logs to trackers, read again with their own packages or as ``fp8parity verdict`` reads them, and badges."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import gates
import pytest
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from fp8parity.report import RENDERERS, log
from fp8parity.report.summary import Report
from fp8parity.runs.stores import EVENTS, _scalars, read_folder
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from verdicts import verdict

GREEN = "te-current-mini-native/loss parity/green"


@pytest.fixture
def run(faulty: Report) -> Trajectory:
    """A run of the report, of another recipe than BF16."""
    return next(r for r in faulty.evidence.records if isinstance(r, Trajectory) and not r.cell.is_control)


def test_tensorboard_shows_verdicts_and_losses(faulty, run, tmp_path):
    log.write(faulty, "tensorboard", tmp_path)
    [file] = tmp_path.rglob(EVENTS)
    found = _scalars(file.parent)
    name = f"{run.cell.id}/loss/seed{run.seed}"
    assert [step for _, step, _ in found[name]] == list(range(len(run.loss)))
    assert [float(text) for *_, text in found[name]] == pytest.approx(run.loss, rel=1e-6, nan_ok=True)
    assert [found[key][0][2] for key in ("accepted", GREEN, "bf16-mini-native/loss parity/green")] == [
        "0.0",
        "0.0",
        "1.0",
    ]
    values = {v.tag: v.metadata for event in EventFileLoader(str(file)).Load() for v in event.summary.value}
    assert values["accepted"].summary_description.startswith("Refuse: te-current on mini fails")
    assert "* versions: torch 2.11.0, torchao 0.18.0" in values["accepted"].summary_description
    assert values[GREEN].summary_description.startswith("fail: ")


def test_wandb_offline_shows_verdicts_and_losses(faulty, run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log.write(faulty, "wandb", tmp_path)
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    rows = read_folder(folder, "").rows  # type: ignore[union-attr]  # None would fail here
    name = f"{run.cell.id}/loss/seed{run.seed}"
    assert [float(row[name]) for row in rows if name in row] == pytest.approx(run.loss, nan_ok=True)
    assert wandb.run is None


def test_mlflow_file_store_shows_verdicts_and_losses(faulty, run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    log.write(faulty, "mlflow", tmp_path)
    client = mlflow.MlflowClient()
    [found] = client.search_runs([client.get_experiment_by_name(log.PROJECT).experiment_id])
    assert (found.info.status, found.data.metrics["accepted"], found.data.metrics[GREEN]) == ("FAILED", 0, 0)
    history = client.get_metric_history(found.info.run_id, f"{run.cell.id}/loss/seed{run.seed}")
    assert [m.value for m in sorted(history, key=lambda m: m.step)] == pytest.approx(run.loss, nan_ok=True)
    assert found.data.tags["CUDA_ driver"] == "13.0, 570"


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_package_that_is_missing_is_refused_also_next_to_its_folder(name, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match=f"--parity-log {name} needs the package {name}: pip install {name}"):
        log.check([name])
    monkeypatch.undo()
    (tmp_path / "folder_of_runs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="needs the package folder_of_runs"):
        log.check(["folder_of_runs"])


@pytest.mark.slow
def test_gate_logs_and_refuses_an_unknown_tracker(tmp_path):
    gate = gates.of(tmp_path)
    done = gate("--parity-log", "tensorbord")
    assert (done.returncode, "did you mean tensorboard?" in done.stderr) == (4, True)
    done = gate("--parity-log", "tensorboard", te_block="fail")
    assert done.returncode == 1, done.stdout
    [file] = (tmp_path / ".parity" / "tensorboard").rglob(EVENTS)
    found = _scalars(file.parent)
    assert found["te-block-tiny-emulated/loss parity/green"][0][2] == "0.0"
    assert found["te-mxfp8-tiny-emulated/loss parity/gap"][0][2] == "0.0081"


@pytest.mark.parametrize(
    ("found", "problems", "answer"),
    [
        ([verdict("pass")], [], "accept, 1 check"),
        ([verdict("pass"), verdict("fail", check="gemm", headline="<b>")], [], "refuse, 1 of 2 checks red"),
        ([verdict("pass")], ["nothing ran"], "refuse"),
    ],
)
def test_badge_shows_the_answer(found: list[Verdict], problems: list[str], answer: str, tmp_path: Path):
    made = Report(found, {}, problems, "m")
    root = ElementTree.fromstring(RENDERERS[".svg"](made))
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["fp8 parity", answer]
    title = root.find("{http://www.w3.org/2000/svg}title")
    assert title is not None and title.text == made.sentence
