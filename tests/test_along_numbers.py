"""What went wrong along a run, in whole sentences and numbers, and the limits that each kind of run has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fp8parity.judging import along
from fp8parity.judging.along import BAND_LEAST, LINES, Finding, control_limits, prior_of, recipe_limits, replica_prior
from fp8parity.judging.loss_goldens import Golden
from fp8parity.judging.stats import REPEATS, Prior
from fp8parity.records.schema import Trajectory
from paired import ROW, SEEDS, STEPS, Make, at, golden_of, runner


def about(value: float, rel: float = 1e-6) -> Any:
    return pytest.approx(value, rel=rel)


@pytest.fixture
def run(trajectory: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.delenv("CI", raising=False)
    return runner(trajectory)


@pytest.fixture
def golden(run: Make) -> Golden:
    return golden_of(run)


def bare(golden: Golden) -> Golden:
    """The golden as it was before anybody measured a spread or trained a replica."""
    return golden.model_copy(update={"spreads": [], "seeds": [s.model_copy(update={"replicas": []}) for s in golden.seeds]})


def found(golden: Golden, candidates: list[Trajectory], controls: list[Trajectory]) -> along.Along:
    return along.along(candidates, controls, golden.seeds, golden, ROW)


def test_the_headlines_of_the_four_faults():
    assert LINES == {
        "first out": "the loss left the step band around BF16's",
        "gradient norm": "the gradient norm left its band around BF16's",
        "trend": "the gap to BF16 changes within the tail by more than the margin",
        "last validation": "the last validation loss is not BF16's",
    }


def test_a_spike_and_a_norm_are_told_with_step_seed_value_and_band(golden: Golden, run: Make):
    """A window of one seed is 5% high, and its gradients are 50% long. The other seeds are BF16's own."""
    controls = [run(seed=s) for s in SEEDS]
    spiked = run("te-current", 1, change=at(80, 80 + ROW.window, 0.05))
    spiked = spiked.model_copy(update={"grad_norm": (np.asarray(spiked.grad_norm) * (1 + at(80, 80 + ROW.window, 0.5))).tolist()})
    faults = found(bare(golden), [run("te-current", 0), spiked, run("te-current", 2)], controls).faults
    clean = float(np.mean(controls[1].loss[80 : 80 + ROW.window]))
    assert faults["first out"] == Finding(f"step 80, seed 1: {clean * 1.05:.4f}, band {clean:.4f} +- {clean * 5e-4:.4f}", about(0.05))
    norms = found(golden, [run("te-current", 0), spiked, run("te-current", 2)], controls).faults["gradient norm"]
    half = 2 * recipe_limits(golden, "te-current", ROW).norm.half[10]  # type: ignore[union-attr]  # this golden has a spread
    centre = float(np.mean(golden.seeds[1].mean_norm[80:88]))
    assert norms == Finding(f"step 80, seed 1: 3, band {centre:.4g} +- {half * centre / 2:.4g}", about(3 / centre - 1, rel=1e-6))


@pytest.mark.parametrize(("late", "word"), [(0.01, "grows"), (-0.01, "falls")])
def test_a_trend_is_told_with_its_direction_and_interval(golden: Golden, run: Make, late, word):
    """Only the second half of the tail moves: by 1%, in every seed alike."""
    controls = [run(seed=s) for s in SEEDS]
    made = [run("te-current", s, change=at(STEPS - 20, STEPS, late)) for s in SEEDS]
    trend = found(golden, made, controls).beside["trend"]
    assert trend.text.startswith(f"the gap {word} within the tail: {late:+.3%} [")
    assert trend.value == about(late, rel=1e-6)


def test_a_validation_on_the_edge_of_its_limit_is_sound(golden: Golden, run: Make):
    """The limit of a validation is three margins of 0.1%. The finding names the first seed outside, and the largest gap."""
    controls = [run(seed=s).model_copy(update={"validation": [(159, 4.0)]}) for s in SEEDS]

    def validated(*factors: float) -> dict[str, Finding]:
        made = [run("te-current", s).model_copy(update={"validation": [(159, 4.0 * f)]}) for s, f in zip(SEEDS, factors, strict=True)]
        return found(golden, made, controls).beside

    limit = BAND_LEAST * ROW.margin
    assert "last validation" not in validated(1, 1 + limit * 0.999, 1 - limit * 0.999)
    assert validated(1, 1 + limit * 1.1, 1 - limit * 1.2)["last validation"] == Finding(
        f"seed 1: {4 * (1 + limit * 1.1):.4f}, band 4.0000 +- {4 * limit:.4f}", about(-limit * 1.2)
    )


def test_without_a_spread_the_limits_follow_from_the_margin(golden: Golden):
    plain = recipe_limits(golden, "te-nvfp4", ROW.model_copy(update={"band_least": None}))
    assert np.asarray(plain.loss.half) == pytest.approx(np.full(STEPS // ROW.window, 3 * 0.001))
    assert (plain.norm, plain.validation, plain.trend) == (None, about(0.003), 0.001)
    named = recipe_limits(golden, "te-nvfp4", ROW)
    assert np.asarray(named.loss.half) == pytest.approx(np.full(STEPS // ROW.window, 5e-4))


def test_the_limits_of_bf16_follow_from_its_drift(golden: Golden):
    own = control_limits(golden, ROW)
    assert (own.validation, own.trend) == (about(3 * 2e-4), 2e-4)
    assert min(own.loss.half) >= 3 * 2e-4
    alone = control_limits(bare(golden), ROW.model_copy(update={"band_least": None}))
    assert np.asarray(alone.loss.half) == pytest.approx(np.full(STEPS // ROW.window, 0.003))
    assert (alone.norm, alone.validation, alone.prior) == (None, about(6e-4), ROW.prior)
    loose = control_limits(golden, ROW.model_copy(update={"drift": None}))
    assert (loose.validation, loose.trend) == (about(0.003), 0.001)


def test_the_prior_is_the_measured_spread_if_there_is_one(golden: Golden):
    """Of BF16 that of its replicas, of a recipe its own, and otherwise that of the row."""
    gaps = [np.mean(r.loss[-40:]) / np.mean(s.loss[-40:]) - 1 for s in golden.seeds for r in s.replicas]
    measured = replica_prior(golden)
    assert measured == Prior(about(max(float(np.sqrt(np.mean(np.square(gaps)))), REPEATS)), 6)
    assert prior_of(golden, "bf16", ROW) == measured
    assert prior_of(golden, "te-current", ROW) == golden.spreads[0].prior != ROW.prior
    assert prior_of(golden, "te-nvfp4", ROW) == prior_of(None, "te-current", ROW) == ROW.prior
    assert replica_prior(bare(golden)) is None
    assert prior_of(bare(golden), "bf16", ROW) == ROW.prior
