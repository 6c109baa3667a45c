"""Recorded runs at ``micro`` without a fault are green, and ``calibrate`` accepts the schedules. tests/faults/model.py has the faults."""

from __future__ import annotations

import pytest
from faults.runs import as_bf16, calibration, in_a_recipe
from fp8parity.judging.calibration import VISIBLE, calibrate, calibrate_records
from fp8parity.records.storage import load_records
from fp8parity.training.variants import FAULTS
from sessions import GOLDEN, stored


@pytest.mark.parametrize("replica", ["replica1", "replica2"])
def test_a_recipe_with_a_replica_is_green(replica: str):
    assert in_a_recipe(replica).status == "pass"


@pytest.mark.parametrize("replica", ["replica1", "replica2"])
def test_a_replica_is_green(replica: str):
    """One weight that moved by one ulp is no fault."""
    found = as_bf16(replica)
    assert (found.status, found.loss and found.loss.moved) == ("pass", "no change beyond the margin"), found.message()


def test_the_schedule_of_micro_is_accepted():
    found = calibrate(calibration("micro"))
    assert found.accepted
    assert found.signal > 100
    assert found.learnt is not None and 1.1 < found.learnt < 1.3
    assert {line.seen_by for line in found.lines if line.name in {f.name for f in FAULTS}} == {"tail", "band", "BF16"}
    assert min(line.control_ratio for line in found.lines if line.seen_by) > VISIBLE


@pytest.mark.parametrize(
    ("model", "noise", "signal", "by_canary"),
    [
        ("tiny", 3e-5, 1800, {"embedding gradient flipped"}),
        ("mini", 3e-5, 3600, {"embedding gradient flipped"}),
        ("small", 2e-5, 12_000, {"embedding gradient flipped"}),
        ("base", 6e-5, 2400, {"embedding gradient flipped", "layer not updated"}),
        ("1b", 3e-4, 600, {"embedding gradient flipped", "layer not updated"}),
    ],
)
def test_the_schedules_of_larger_models_are_accepted(model: str, noise: float, signal: float, by_canary: set[str]):
    """On H100s. Every fault that was planted is seen; the loss leaves only these to the canary."""
    rules = stored()[1]
    found = calibrate_records(load_records(GOLDEN / "records" / "calibration" / f"{model}.zip"), rules)
    assert found.noise < noise
    assert found.signal > signal
    assert found.accepted
    assert found.faults == len(FAULTS)
    assert {line.name for line in found.lines if line.seen_by == "canary"} == by_canary
