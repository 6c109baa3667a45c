"""Recorded runs at ``micro`` without a fault are green, and ``calibrate`` accepts the schedules. tests/faults/model.py has the faults."""

from __future__ import annotations

import pytest
from faults.runs import as_bf16, calibration, in_a_recipe
from fp8parity.judging.calibration import VISIBLE, calibrate
from fp8parity.training.variants import FAULTS


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
    assert found.learned is not None and 1.1 < found.learned < 1.3
    assert {line.seen_by for line in found.lines if line.name in {f.name for f in FAULTS}} == {"tail", "band", "BF16"}
    assert min(line.control_ratio for line in found.lines if line.seen_by) > VISIBLE
