"""Faults of the model, the loss and the optimiser at ``micro``: planted in BF16, the framework moved; in a recipe alone, the recipe."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path

import pytest
from fp8parity.judging import goldens, policy
from fp8parity.judging.calibration import VISIBLE, calibrate
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.goldens import Goldens
from fp8parity.judging.policy import Policy
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.training.variants import FAULTS

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def calibration(model: str) -> list[Trajectory]:
    return [r for r in load_records(GOLDEN / "records" / "calibration" / f"{model}.zip") if isinstance(r, Trajectory)]


@cache
def references() -> tuple[Goldens, Policy]:
    return goldens.load(GOLDEN), policy.load(GOLDEN, datetime.date(2026, 11, 22))


def judged(variant: str) -> Verdict:
    """The verdict on three seeds of a variant of micro, as if a framework gave them for BF16."""
    runs = [r.model_copy(update={"variant": ""}) for r in calibration("micro") if r.variant == variant]
    assert len(runs) == 3
    [found] = evaluate(runs, *references())
    [verdict] = found.verdicts
    return verdict


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_standard_fault_is_drift(fault):
    """Recorded on a CPU."""
    found = judged(fault.name)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved"), found.message()
    assert "first out" in dict(found.lines)


def in_a_recipe(variant: str) -> Verdict:
    """The verdict on te-current if its runs had, in addition, the gaps that this variant had in BF16."""
    plain = {r.seed: r for r in calibration("micro") if r.cell.is_control and not r.variant}
    recipe = {r.seed: r for r in calibration("micro") if r.cell.recipe == "te-current"}
    runs = [_combined(recipe[r.seed], r, plain[r.seed]) for r in calibration("micro") if r.variant == variant]
    [found] = evaluate([*runs, *plain.values()], *references())
    return next(v for v in found.verdicts if not v.cell.is_control)


def _combined(run: Trajectory, fault: Trajectory, plain: Trajectory) -> Trajectory:
    def times(a: list[float], b: list[float], c: list[float]) -> list[float]:
        return [x * y / z for x, y, z in zip(a, b, c, strict=True)]

    first = {k: v * (fault.first_gradients[k] / plain.first_gradients[k]) for k, v in run.first_gradients.items()}
    last = run.validation[-1][1] * fault.validation[-1][1] / plain.validation[-1][1]
    changes = {
        "loss": times(run.loss, fault.loss, plain.loss),
        "grad_norm": times(run.grad_norm, fault.grad_norm, plain.grad_norm),
        "first_gradients": first,
        "validation": [(run.steps - 1, last)],
    }
    return run.model_copy(update=changes)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_every_standard_fault_of_a_recipe_alone_is_its_fault(fault):
    found = in_a_recipe(fault.name)
    assert (found.status, found.loss and found.loss.moved) == ("fail", "the recipe moved, not the framework"), found.message()


@pytest.mark.parametrize("replica", ["replica1", "replica2"])
def test_a_recipe_with_a_replica_is_green(replica: str):
    assert in_a_recipe(replica).status == "pass"


@pytest.mark.parametrize("replica", ["replica1", "replica2"])
def test_a_replica_is_green(replica: str):
    """One weight that moved by one ulp is no fault."""
    found = judged(replica)
    assert (found.status, found.loss and found.loss.moved) == ("pass", "the framework has not moved"), found.message()


def test_the_schedule_of_micro_is_accepted():
    found = calibrate(calibration("micro"))
    assert found.accepted
    assert found.signal > 100
    assert found.learnt is not None and 1.1 < found.learnt < 1.3
    assert {line.seen_by for line in found.lines if line.name in {f.name for f in FAULTS}} == {"tail", "band", "BF16"}
    assert min(line.control_ratio for line in found.lines if line.seen_by) > VISIBLE


@pytest.mark.parametrize(
    ("model", "noise", "signal"),
    [("tiny", 5e-5, 900), ("mini", 2e-5, 4000), ("small", 1e-5, 20_000), ("base", 1e-5, 28_000), ("1b", 1e-4, 1900)],
)
def test_schedules_that_the_larger_models_can_have(model: str, noise: float, signal: float):
    """Recorded on an H100, not yet the schedules of the goldens."""
    found = calibrate(calibration(model))
    assert found.noise < noise
    assert found.signal > signal
    assert found.accepted == (model not in ("tiny", "mini"))
    assert found.accepted or found.problems == ("nothing sees: embedding gradient flipped",)
