"""Made-up training runs: a smooth curve of twelve steps, with any field replaced. Nothing is trained."""

from __future__ import annotations

from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Module, Trajectory
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.presets import Preset
from fp8parity.workload.schedule import Schedule

NANO = Preset(
    ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128),
    Schedule(steps=12, rows=2, length=64, lr=1e-3, warmup=3, tail=4, validation_every=6, validation_rows=4),
)
PROVENANCE = Provenance(
    packages={"torch": "0"}, device="d", capability=None, driver=None, cuda=None, cpu="c", cpu_flags=[], threads=1,
    python="3", system="s", commit="abc", dirty=False, environment={}, quantizer="-",
)  # fmt: skip


OTHER_NORM = 1e-6
"""Runs with other losses have other gradient norms, so little that nothing else judges them."""


def made(recipe: str = "bf16", seed: int = 0, gap: float = 0.0, **changes: object) -> Trajectory:
    """A run whose losses are shifted by a relative ``gap``, with any field replaced."""
    schedule = NANO.schedule
    base = [5 - 0.1 * s + 0.01 * ((seed * 7 + s * 3) % 5) + 1e-9 * seed for s in range(schedule.steps)]
    loss = [x * (1 + gap) for x in base]
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    run = Trajectory(
        partial=True,
        cell=Cell(model="nano", recipe=recipe, execution=execution, corpus="topics"),
        seed=seed, spec_hash="spec", schedule=schedule.numbers, parameters=1, fingerprint="print", floor=None,
        initial_weights=f"w{seed}", final_weights="f", loss=loss, grad_norm=[1 + OTHER_NORM * x for x in loss],
        validation=[(schedule.steps - 1, loss[-1])], non_finite=None,
        inventory=[] if recipe == "bf16" else [Module(fqn="a", kind="b", config="c")],
        seconds=1.0, step_seconds=0.1, peak_memory=1, mode=Mode.EAGER, provenance=PROVENANCE, session="s",
    )  # fmt: skip
    return run.model_copy(update=changes)
