"""Shared pieces of the tests of the suite."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import reports
import torch
from fp8parity import checks
from fp8parity.numerics import emulation
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.schema import Module, Provenance, Trajectory
from fp8parity.report import view
from fp8parity.runner import Settings
from fp8parity.training.hardware import Hardware
from fp8parity.workload.models import ModelConfig
from fp8parity.workload.presets import Preset, presets
from fp8parity.workload.schedule import Schedule
from sessions import Session

pytest_plugins = ("pytester",)
ROOT = Path(__file__).parents[1]

NANO = Preset(
    ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128),
    Schedule(steps=12, rows=2, length=64, lr=1e-3, warmup=3, tail=4, validation_every=6, validation_rows=4),
)


@pytest.fixture(scope="session", autouse=True)
def frozen() -> None:
    """Modules live to the end. Without this, the end of each pytest inside a test looks through them twice, which takes 0.6 s."""
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread():
    """The tests' own thread count, put back whatever a test does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch):
    """Run the emulation uncompiled, so that a planted fault is not hidden in an older kernel."""
    monkeypatch.setattr(emulation, "compiles", lambda: False)
    emulation.kernel.cache_clear()
    yield
    emulation.kernel.cache_clear()


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """The project's own goldens and policy, records in a scratch folder, on the CPU."""
    return Session(Settings(records=tmp_path / "records"), Hardware("cpu", "cpu", None), "test", presets() | {"nano": NANO})


PROVENANCE = Provenance(
    packages={"torch": "0"}, device="d", capability=None, driver=None, cuda=None, cpu="c", cpu_flags=[], threads=1,
    python="3", system="s", commit="abc", dirty=False, environment={}, quantiser="-",
)  # fmt: skip


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    """A made-up trajectory: a smooth curve, shifted by a relative ``gap``, with any field replaced."""

    def make(recipe: str = "bf16", seed: int = 0, gap: float = 0.0, **changes: object) -> Trajectory:
        schedule = NANO.schedule
        loss = [(5 - 0.1 * s + 0.01 * ((seed * 7 + s * 3) % 5)) * (1 + gap) for s in range(schedule.steps)]
        execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
        base = Trajectory(
            schema_version=1,
            cell=Cell(model="nano", recipe=recipe, execution=execution, corpus="topics"),
            seed=seed, spec_hash="spec", schedule=dataclasses.asdict(schedule), parameters=1, fingerprint="print", floor=None,
            initial_weights=f"w{seed}", final_weights="f", loss=loss, grad_norm=[1.0] * schedule.steps,
            validation=[(schedule.steps - 1, loss[-1])], non_finite=None,
            inventory=[] if recipe == "bf16" else [Module(fqn="a", kind="b", config="c")],
            seconds=1.0, step_seconds=0.1, peak_memory=1, mode=Mode.EAGER, provenance=PROVENANCE, session="s",
        )  # fmt: skip
        return base.model_copy(update=changes)

    return make


def subject(session: Session, recipe: str, execution: str = "emulated") -> checks.RunSpec:
    return session.subject(recipe, execution)


def measured(found: checks.Result) -> dict[str, float]:
    return {f"{m.metric} @ {m.where}": m.value for m in found[0]}


@pytest.fixture(scope="session")
def faulty() -> view.Report:
    """One recipe above the margin, one non-finite, one speed row a cell, two reasons of skips."""
    skipped = {
        "te-mxfp8-tiny-native": "Skipped: needs sm_100",
        "te-nvfp4-tiny-native": "Skipped: needs sm_100",
        "x-tiny-native": "no package",
    }
    return reports.report(
        skipped, recipes=("te-current", "te-block", "te-nvfp4"), models=("tiny", "mini"), gaps={("te-current", "mini"): 0.0081},
        stops={("te-nvfp4", "mini"): 100}, speeds=True,
    )  # fmt: skip
