"""A [[trend]] row: the accumulation of a longer sum may not lose less."""

from __future__ import annotations

import pytest
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Measurement, Measurements
from sessions import cell, verdict
from trajectories import PROVENANCE

LENGTHS = ("K=512", "K=2048", "K=8192", "K=32768")
FLAT = [-0.0018, -0.0246, -0.0352, -0.0379]
"""te-current's fprop on an H200 (golden/numerics/nvidia-h200.csv)."""


def judged(biases: list[float], execution: str = "native", metric: str = "fprop bias") -> Verdict:
    values = [Measurement(metric=metric, where=k, value=v) for k, v in zip(LENGTHS, biases, strict=True)]
    of = cell("te-current", execution)
    return verdict(
        Measurements(cell=of, check="accumulation", values=values, provenance=PROVENANCE, session="s", partial=True)
    )


def test_a_falling_bias_is_green():
    assert judged(FLAT).status == "pass"


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_bias_that_rises_is_named_with_the_one_before(at):
    rising = [*FLAT]
    rising[at] = rising[at - 1] + 0.0003
    found = judged(rising)
    assert found.status == "fail"
    [(place, text)] = [line for line in found.lines if "by more than" in line[1]]
    assert place == f"fprop bias @ {LENGTHS[at]}"
    assert text.startswith(f"{rising[at]:.6g} is above {rising[at - 1]:.6g} at {LENGTHS[at - 1]} by more than 0.0002 (")


def test_nan_is_no_falling_bias():
    assert judged([-0.0018, float("nan"), -0.0352, -0.0379]).status == "fail"


def test_the_cause_comes_first():
    ends = "+50.00% at K=512 and +50.00% at K=32768"
    assert judged([0.5] * 4).lines[0] == (
        "cause",
        f"fprop: the bias is the same for every K ({ends}): a scale, not an accumulator",
    )
