"""A model with experts on the whole road, in a project of a user's own: its golden, the loss verdict, the inventory."""

from __future__ import annotations

from pathlib import Path

import projects
import pytest
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import load

MODEL = """
from fp8parity.workload.experts import Experts
from fp8parity.workload.models import ModelConfig
from fp8parity.workload.presets import Preset
from fp8parity.workload.schedule import Schedule

pytest_plugins = ("fp8parity.gate.plugin",)


def pytest_fp8parity_models():
    model = ModelConfig("nano", dim=32, layers=1, heads=1, kv_heads=1, hidden=32, experts=Experts(4))
    return [Preset(model, Schedule(steps=12, rows=2, length=64, lr=1e-3, warmup=3, tail=4, validation_every=6, validation_rows=4))]
"""


@pytest.mark.slow
def test_mixture_is_recorded_and_judged(tmp_path: Path):
    project = projects.make(tmp_path)
    (project / "conftest.py").write_text(MODEL)
    projects.commit(project)
    projects.record_golden(project)
    projects.commit(project)
    done = projects.start(project, "--recipe", "te-current", "--execution", "emulated")
    assert "Accept" in done.stdout, done.stdout
    runs = [r for r in load([project / ".parity"]) if isinstance(r, Trajectory)]
    inventories = {r.cell.recipe: {m.fqn for m in r.inventory} for r in runs}
    assert inventories["bf16"] == set()
    assert {f"layers.0.mlp.{name}_proj.{i}" for name in ("gate", "up", "down") for i in range(4)} < inventories[
        "te-current"
    ]
    weights = {r.initial_weights for r in runs if r.seed == 0}
    assert len(weights) == 1
