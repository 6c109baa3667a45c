"""The two SQNRs of a run's gradient are measured numbers with bands: a seed repeats within tenths of a dB, whatever machine trains it."""

from __future__ import annotations

import datetime
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fp8parity.judging import gradients, policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.table import Judged
from fp8parity.judging.verdict import LossDetail, Verdict
from fp8parity.records import sets
from fp8parity.records.schema import AnyRecord, Trajectory

GOLDEN = Path(__file__).parents[1] / "golden"
PROBED = {
    "h200-gate-fifth": 36,
    "h100-gate-sixth": 36,
    "micro-xeon-probes": 18,
}
"""The runs with probes in each set. Three of these sets gave the numbers."""


@cache
def reference():
    return policy.load(GOLDEN, datetime.date(2026, 11, 26)), measured_numbers.load(GOLDEN)


@cache
def runs_of(gate: str) -> tuple[Trajectory, ...]:
    return tuple(r for r in sets.load([GOLDEN / f"records/{gate}.zip"]) if isinstance(r, Trajectory))


def one(recipe: str = "te-current", model: str = "mini", seed: int = 0) -> Trajectory:
    [found] = [r for r in runs_of("h200-gate-fifth") if (r.cell.recipe, r.cell.model, r.seed) == (recipe, model, seed)]
    return found


def shifted(run: Trajectory, early: float = 0.0, late: float = 0.0) -> Trajectory:
    first, last = run.probes
    return run.model_copy(
        update={
            "probes": [
                first.model_copy(update={"sqnr": first.sqnr + early}),
                last.model_copy(update={"sqnr": last.sqnr + late}),
            ],
        }
    )


def outside(*runs: Trajectory) -> list[Judged]:
    """The probes of these runs that are outside the bands of their numbers."""
    return [r for run in runs for r in gradients.measured_probes(run, *reference()) if r.outside]


@pytest.mark.parametrize("gate", PROBED)
def test_sound_runs_are_at_their_numbers(gate):
    probed = sum(len(run.probes) == 2 for run in runs_of(gate))
    assert (probed, outside(*runs_of(gate))) == (PROBED[gate], [])


def test_every_run_of_these_sets_has_a_number():
    """Otherwise the test above would be green without looking at anything."""
    moved = [
        shifted(run, early, late)
        for gate in PROBED
        for run in runs_of(gate)
        if run.probes
        for early, late in ((1, 0), (0, 6))
    ]
    assert all(outside(run) for run in moved)


@pytest.mark.parametrize(
    ("early", "late", "step"), [(0.6, 0, 10), (-0.6, 0, 10), (0, 2, 199), (0, -2, 199), (0.2, 0.7, None)]
)
def test_both_steps_have_a_band_on_both_sides(early, late, step):
    found = outside(one(), shifted(one(), early, late))
    assert [r.steps for r in found] == ([(step, step)] if step else [])
    for r in found:
        assert r.reference is not None
        assert r.value - r.reference == pytest.approx(early + late, abs=0.1)
        assert ("less was quantized" in gradients.sentence(r)) == (early + late > 0)


@pytest.mark.parametrize("change", ["seed", "fused", "no probes", "equal to the bit"])
def test_without_a_number_nothing_is_held_to_it(change):
    run = shifted(one(), 5, 5)
    other: dict[str, dict[str, Any]] = {
        "seed": {"seed": 99},
        "fused": {"cell": run.cell.model_copy(update={"execution": "fused"})},
        "no probes": {"probes": []},
        "equal to the bit": {"probes": [p.model_copy(update={"sqnr": math.inf}) for p in run.probes]},
    }
    assert outside(run), "the same run is red with its number"
    assert not outside(run.model_copy(update=other[change]))


def verdict(records: list[AnyRecord]) -> tuple[Verdict, LossDetail]:
    [machine] = evaluate(records, references.load(GOLDEN), reference()[0])
    [(found, detail)] = [(v, v.loss) for v in machine.verdicts if v.cell.recipe == "te-current" and v.loss]
    return found, detail


def mini(late: float = 0.0, bf16: float = 1.0) -> list[AnyRecord]:
    """te-current and BF16 at mini, with the last SQNR moved, and all losses of both scaled as if the framework had moved."""
    kept = [r for r in runs_of("h200-gate-fifth") if r.cell.model == "mini" and r.cell.recipe in ("bf16", "te-current")]
    return [shifted(scaled(r, bf16), late=late) if r.probes else scaled(r, bf16) for r in kept]


def scaled(run: Trajectory, factor: float) -> Trajectory:
    validation = [(step, loss * factor) for step, loss in run.validation]
    little = 1 + (factor - 1) / 1000
    norms = [norm * little for norm in run.grad_norm]
    first = {name: norm * little for name, norm in run.first_gradients.items()}
    losses = [loss * factor for loss in run.loss]
    return run.model_copy(
        update={"loss": losses, "validation": validation, "grad_norm": norms, "first_gradients": first}
    )


def test_a_run_off_its_number_is_red_and_the_recipe_moved():
    assert verdict(mini())[0].status == "pass"
    red, detail = verdict(mini(late=2))
    assert (red.status, detail.blame) == ("fail", "the recipe changed, not the framework")
    assert red.headline.startswith("last gradient sqnr, step 199, seed 0: 23.1")
    assert "measured 21.1756 +- 1.25" in red.headline
    assert red.headline.endswith("less was quantized, or more finely")


def test_the_first_and_the_last_probe_count():
    early, late = one().probes
    wrong = early.model_copy(update={"sqnr": 90.0})
    assert not outside(one().model_copy(update={"probes": [early, wrong, late]}))
    assert not outside(one().model_copy(update={"probes": [wrong]}))


def test_a_framework_that_moved_is_not_blamed_on_the_recipe():
    """BF16 has other weights then, and the numbers say nothing about its gradients."""
    found, detail = verdict(mini(late=2, bf16=1.02))
    assert (found.status, [r for r in found.rows if r.metric in gradients.PROBES]) == ("drift", [])
    assert detail.blame
