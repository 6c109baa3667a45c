"""What a gate logs to TensorBoard, read again, and to the trackers of a hook, and badges."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock
from xml.etree import ElementTree

import gates
import pytest
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from fp8parity.report import RENDERERS, log
from fp8parity.report.summary import Report
from fp8parity.runs.stores import EVENTS, _scalars
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from verdicts import verdict

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "my_trackers.py"
TRACKERS = runpy.run_path(str(EXAMPLE))["pytest_fp8parity_trackers"]()
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
    assert 0.0078 < float(found["te-current-mini-native/loss parity/gap"][0][2]) < 0.0084
    values = {v.tag: v.metadata for event in EventFileLoader(str(file)).Load() for v in event.summary.value}
    assert values["accepted"].summary_description.startswith("Refuse: te-current on mini fails")
    assert "* versions: torch 2.11.0, torchao 0.18.0" in values["accepted"].summary_description
    assert values[GREEN].summary_description.startswith("fail: ")


@pytest.fixture
def package(monkeypatch) -> MagicMock:
    """A stand-in for the package of a tracker, which keeps what it is told."""
    made = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def test_wandb_example_logs_verdicts_and_losses(faulty, run, package, tmp_path):
    TRACKERS["wandb"](log.Log.of(faulty), tmp_path)
    made, name = package.init.return_value, f"{run.cell.id}/loss/seed{run.seed}"
    losses = {given["step"]: values[name] for (values,), given in made.log.call_args_list if name in values}
    assert list(losses.values()) == pytest.approx(run.loss, nan_ok=True) and list(losses) == list(range(len(losses)))
    assert package.init.call_args.kwargs["dir"] == str(tmp_path)
    [numbers] = made.summary.update.call_args.args
    assert (numbers["accepted"], numbers[GREEN]) == (0, 0)
    made.finish.assert_called_once_with(exit_code=1)


def test_missing_tensorboard_is_refused_also_next_to_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ValueError, match="--parity-log tensorboard needs the package tensorboard: pip install"):
        log.check(["tensorboard"])
    log.check(["mine"])
    folder = ModuleSpec("tensorboard", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: folder)
    with pytest.raises(ValueError, match="needs the package tensorboard"):
        log.check(["tensorboard"])


TRACKER = """
def pytest_fp8parity_trackers():
    return {"mine": lambda log, folder: (folder / "mine.txt").write_text(log.sentence)}
"""


@pytest.mark.slow
def test_gate_logs_and_refuses_an_unknown_tracker(tmp_path):
    gate = gates.of(tmp_path)
    done = gate("--parity-log", "tensorbord")
    assert (done.returncode, "did you mean tensorboard?" in done.stderr) == (4, True)
    done = gate("--parity-log", "mine", te_block="fail", more=TRACKER)
    assert done.returncode == 1, done.stdout
    assert (tmp_path / ".parity" / "mine.txt").read_text().startswith("Refuse: ")


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
