"""What a calibration refuses, with whole sentences, and the edges of its numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import calibrations
import numpy as np
import pytest
from calibrations import SEEDS, STEPS, TAIL, Make, standard
from fp8parity.judging import calibration
from fp8parity.judging.calibration import Line, calibrate, calibrate_records, canary_ratios
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band
from fp8parity.records.schema import Measurement, Measurements, NonFinite, Trajectory

BANDED = Policy(path=Path("policy.toml"), band=(Band(check=("canary",), band=0.5, why="a made-up row"),))
Runs = list[Trajectory]


@pytest.fixture
def run(trajectory: Make) -> Make:
    return calibrations.maker(trajectory)


@pytest.fixture
def sound(run: Make) -> Runs:
    return standard(run, outputs_shifted=(0.05, 0))


def canary(trajectory: Make, variant: str, value: float, check: str = "canary") -> Measurements:
    values = [Measurement(metric="m", where="w", value=value)]
    made = trajectory()
    return Measurements(
        cell=made.cell, check=check, values=values, provenance=made.provenance, session="s", variant=variant
    )


def without_seed_1(runs: Runs) -> Runs:
    return [r for r in runs if r.seed != 1 or r.variant or not r.cell.is_control]


def without_schedule(runs: Runs) -> Runs:
    return [
        r.model_copy(update={"schedule": {k: v for k, v in r.schedule.items() if k not in ("rows", "length")}})
        for r in runs
    ]


def stopped(runs: Runs) -> Runs:
    bad = {"non_finite": NonFinite(step=70, where="x")}
    return [r.model_copy(update=bad) if r.cell.is_control and not r.variant and r.seed == 2 else r for r in runs]


def of(*kinds: str) -> Callable[[Runs], Runs]:
    """BF16 and these kinds."""

    def kept(runs: Runs) -> Runs:
        return [r for r in runs if any(k in (r.variant or r.cell.recipe) for k in (*kinds, "bf16"))]

    return kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda runs: [r for r in runs if r.seed == 0], "a calibration needs one schedule and two BF16 seeds"),
        (without_seed_1, "seed 1 of replica1 has no BF16 run beside it"),
        (
            lambda runs: of("te-current")(without_seed_1(runs)),
            "seed 1 of te-current emulated has no BF16 run beside it",
        ),
        (without_schedule, "the schedule has no length, rows"),
        (stopped, "BF16 itself is not finite; the learning rate may be too high"),
        (of("replica"), "a calibration needs replicas and recipes"),
        (of("te-current"), "a calibration needs replicas and recipes"),
    ],
)
def test_what_is_refused(sound: Runs, change: Callable[[Runs], Runs], words: str):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        calibrate(change(sound))


def test_a_canary_needs_a_measurement_without_a_fault(trajectory: Make):
    words = "the canary was measured with faults only; it needs a measurement without one"
    with pytest.raises(ValueError, match=f"^{words}$"):
        canary_ratios([canary(trajectory, "outputs shifted", 9.0)], BANDED)
    assert canary_ratios([], BANDED) == {}


def test_only_the_canary_stands_beside_the_losses(trajectory: Make, sound: Runs, run: Make):
    """The fault is too small for the losses. Another check has moved further than the canary."""
    small = [run("new fault", s, 2e-5) for s in SEEDS]
    moved = [canary(trajectory, "", 1.0), canary(trajectory, "new fault", 9.0)]
    others = [canary(trajectory, "", 1.0, "gradients"), canary(trajectory, "new fault", 99.0, "gradients")]
    [line] = [
        found
        for found in calibrate_records([*sound, *small, *moved, *others], BANDED).lines
        if found.name == "new fault"
    ]
    assert (line.canary_ratio, line.seen_by) == (16.0, "canary")


def test_the_tail_holds_the_last_steps_only(sound: Runs):
    """BF16 and all others rise in the middle, and the others also move against BF16 there."""

    def risen(r: Trajectory) -> Trajectory:
        loss = np.asarray(r.loss)
        loss[20 : STEPS - TAIL] *= 1.2 + (0 if r.cell.is_control and not r.variant else 0.01 * r.seed)
        return r.model_copy(update={"loss": loss.tolist()})

    before, after = calibrate(sound), calibrate([risen(r) for r in sound])
    for name in ("noise", "replica_noise", "tail_loss", "learnt"):
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-9), name
    assert [(line.mean, line.sd) for line in after.lines] == [
        pytest.approx((line.mean, line.sd)) for line in before.lines
    ]


def test_a_spread_needs_two_seeds(run: Make, sound: Runs):
    faults = [run("one seed", 0, 0.05), *(run("two seeds", s, 0.05 + 0.01 * s) for s in (0, 1))]
    lines = {line.name: line for line in calibrate([*sound, *faults]).lines}
    assert (lines["one seed"].n, lines["one seed"].sd) == (1, 0.0)
    assert lines["two seeds"].n == 2
    assert lines["two seeds"].sd == pytest.approx(0.01 / np.sqrt(2))
    assert lines["te-current emulated"].sd == pytest.approx(1e-4)


def test_a_schedule_without_the_standard_fault_has_no_signal(run: Make):
    found = calibrate(standard(run, weights_stale=(0.05, 0)))
    assert found.problems == ("the fault 'outputs shifted' was not planted",)
    assert found.signal == 0.0


@pytest.mark.parametrize(
    ("level", "problems"),
    [(3.5, ()), (3.5625, ("the model has gone 44% of the way to the bigram entropy, below 50%",))],
)
def test_half_of_the_way_is_enough(sound: Runs, level: float, problems: Sequence[str]):
    flat = [
        r.model_copy(update={"bigram": 3.0, "loss": [level * x / 3.0 for x in r.loss[: STEPS - TAIL]] + [level] * TAIL})
        if r.cell.is_control and not r.variant
        else r
        for r in sound
    ]
    assert tuple(p for p in calibrate(flat).problems if "bigram" in p) == problems


@pytest.mark.parametrize(("ratio", "problems"), [(10.0, []), (9.99, ["shifted outputs stand below 10 sd in the tail"])])
def test_a_fault_is_visible_at_ten_sd(ratio: float, problems: Sequence[str]):
    line = Line(calibration.SHIFTED, 3, 0.05, 0.0, 0.05, ratio, 99.0, 99.0, None, "band")
    assert calibration._problems([line], {calibration.SHIFTED}, None) == problems
