"""What is said about a fault along a run: its headline, its whole sentence and its number, and the limits that it is held to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from fp8parity.judging import loss_curves
from fp8parity.judging.loss_goldens import Golden
from fp8parity.judging.policy import LossRow
from fp8parity.judging.stats import Prior
from fp8parity.records.schema import Trajectory
from narrowed import some
from paired import ROW, SEEDS, STEPS, Make, at, judged

RISING = at(120, 140, -0.002) + at(140, 160, 0.002)
LATE = np.where(np.arange(STEPS) < 100, 1, 1.1)
PLAIN = LossRow(margin=0.005, window=8, sd=1e-4, sd_df=20, why="a made-up row")
DRIFT = PLAIN.model_copy(update={"bf16_margin": 2e-4})
OWN = Prior(1e-4, 20)


@pytest.fixture
def bare(golden: Golden) -> Golden:
    """A golden without replicas and without spreads."""
    return golden.model_copy(
        update={"spreads": [], "seeds": [s.model_copy(update={"replicas": []}) for s in golden.seeds]}
    )


def validated(run: Make, *factors: float) -> list[Trajectory]:
    """Runs of te-current whose last of three validations is off by a factor."""
    return [
        run("te-current", s, 10, validation=[(0, 5.0), (80, 4.0), (159, 3.5 * f)]) for s, f in zip(SEEDS, factors, strict=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("make", "min_step_band", "name", "text", "value", "headline"),
    [
        (
            lambda run: [run("te-current", s, 10, at(80, 88, 0.004)) for s in SEEDS], 5e-4,
            "first out", "step 80, seed 0: 4.2288, band 4.2123 +- 0.0021", 0.004018038,
            "the loss left the step band around BF16's",
        ),
        (
            lambda run: [
                r.model_copy(update={"grad_norm": (np.asarray(r.grad_norm) * LATE).tolist()})
                for r in (run("te-current", s, 10) for s in SEEDS)
            ], 5e-4,
            "gradient norm", "step 96, seed 0: 2.099, band 1.999 +- 0.03999", 0.102960804,
            "the gradient norm left its band around BF16's",
        ),
        (
            lambda run: [run("te-current", s, 10, RISING) for s in SEEDS], 0.01,
            "trend", "the gap grows within the tail: +0.397% [+0.392%, +0.402%]", 0.003967848,
            "the gap to BF16 changes within the tail by more than the margin",
        ),
        (
            lambda run: [run("te-current", s, 10, -RISING) for s in SEEDS], 0.01,
            "trend", "the gap falls within the tail: -0.403% [-0.408%, -0.398%]", -0.004032232,
            "the gap to BF16 changes within the tail by more than the margin",
        ),
        (
            lambda run: validated(run, 0.99, 1.05, 1.0), 5e-4,
            "last validation", "seed 0: 3.4650, band 3.4999 +- 0.0105", 0.049955553,
            "the last validation loss is not BF16's",
        ),
    ],
    ids=["loss", "norm", "rising", "falling", "validation"],
)  # fmt: skip
def test_a_fault_has_its_sentence_its_number_and_its_headline(
    golden: Golden, run: Make, make: Callable[[Make], list[Trajectory]], min_step_band, name, text, value, headline
):
    """The sentence names the first seed outside, and the number is the gap that is furthest outside."""
    row, runs, controls = (
        ROW.model_copy(update={"min_step_band": min_step_band}),
        make(run),
        [run(seed=s) for s in SEEDS],
    )
    found = loss_curves.judge_curves(runs, controls, [golden.seeds[s] for s in SEEDS], golden, row)
    assert {n: f.text for n, f in found.faults.items()} == {name: text}
    assert found.faults[name].value == pytest.approx(value, rel=1e-5)
    assert (list(found.beside), found.control, found.first_out) == ([name], {}, 80 if name == "first out" else None)
    verdict = judged(golden, runs, controls, row=row)
    assert (verdict.status, verdict.headline) == ("fail", headline)
    assert (name, text) in verdict.lines


def test_bf16_is_held_to_the_band_of_its_replicas(golden: Golden, run: Make):
    made = [run(seed=s, change=at(80, 88, 0.0015)) for s in SEEDS]
    found = loss_curves.judge_curves(made, made, [golden.seeds[s] for s in SEEDS], golden, ROW)
    assert {n: f.text for n, f in found.faults.items()} == {
        "first out": "step 80, seed 0: 4.2079, band 4.2028 +- 0.0025"
    }
    assert (found.faults, found.beside, found.first_out) == (found.control, {}, 80)


def test_gaps_of_a_band_are_to_the_mean_of_run_and_replicas(golden: Golden, run: Make):
    seed = golden.seeds[SEEDS[0]]
    made = run("te-current", seed.seed, 10, RISING)
    found = loss_curves.judge_curves([made], [run(seed=seed.seed)], [seed], golden, ROW).band
    mean = np.mean([seed.loss, *(r.loss for r in seed.replicas)], axis=0).reshape(-1, found.window).mean(1)
    assert seed.replicas
    assert found.gaps == {seed.seed: pytest.approx(np.reshape(made.loss, (-1, found.window)).mean(1) / mean - 1)}


def test_the_interval_of_a_trend_is_shared_among_the_looks(bare: Golden, run: Make):
    """With three looks, the error probability of each is a third."""
    row = LossRow(margin=0.001, seeds=(3, 5, 8), min_step_band=0.05, window=8, why="a made-up row")
    runs = [run("te-current", s, 10, RISING) for s in SEEDS]
    found = loss_curves.judge_curves(
        runs, [run(seed=s) for s in SEEDS], [bare.seeds[s] for s in SEEDS], bare, row
    ).faults["trend"]
    gaps = [np.asarray(r.loss[-40:]) / np.asarray(bare.seeds[s].loss[-40:]) for s, r in enumerate(runs)]
    changes = [g[20:].mean() - g[:20].mean() for g in gaps]
    half = scipy.stats.t.ppf(1 - row.alpha / 3, 2) * np.std(changes, ddof=1) / 3**0.5
    mean = np.mean(changes)
    assert found.text == f"the gap grows within the tail: {mean:+.3%} [{mean - half:+.3%}, {mean + half:+.3%}]"


@pytest.mark.parametrize(("factor", "names"), [(1.375, []), (1.3750001, ["last validation"])])
def test_a_last_validation_on_its_limit_is_inside(bare: Golden, run: Make, factor, names):
    """The limit is three margins."""
    row = LossRow(margin=0.125, window=8, why="a made-up row")
    found = loss_curves.judge_curves(
        validated(run, 1.0, factor, 1.0), [run(seed=s) for s in SEEDS], [bare.seeds[s] for s in SEEDS], bare, row
    )
    assert list(found.faults) == names


def test_limits_without_a_measured_spread_are_multiples_of_the_margin(golden: Golden, bare: Golden):
    """Bands and validations may be off by three margins. BF16's validation and trend follow from its drift, if the row has one."""
    recipe, control, drift = (
        loss_curves.recipe_limits(bare, "te-current", PLAIN),
        loss_curves.control_limits(bare, PLAIN),
        loss_curves.control_limits(bare, DRIFT),
    )
    for limits in (recipe, control, drift):
        assert limits.loss.half == pytest.approx([0.015] * 20)
        assert (limits.norm, limits.prior) == (None, OWN)
    replicas = loss_curves.control_limits(golden, DRIFT)
    assert [x.validation for x in (recipe, control, drift, replicas)] == pytest.approx([0.015, 0.015, 6e-4, 6e-4])
    assert [x.trend for x in (recipe, control, drift, replicas)] == [0.005, 0.005, 2e-4, 2e-4]
    assert min(replicas.loss.half) == pytest.approx(6e-4)


def test_the_prior_of_replicas_is_their_root_mean_square_gap(golden: Golden, bare: Golden):
    """Replicas that are 0.02% and 0.04% off have one of 0.0316%. Below 0.001% the prior does not go."""
    assert loss_curves.replica_prior(golden) == Prior(1e-5, 6)
    assert loss_curves.replica_prior(bare) is None
    apart = [
        s.model_copy(
            update={
                "replicas": [
                    r.model_copy(update={"loss": (np.asarray(s.loss) * (1 + gap)).tolist()})
                    for r, gap in zip(golden.seeds[0].replicas, (2e-4, 4e-4), strict=True)
                ]
            }
        )
        for s in bare.seeds
    ]
    found = some(loss_curves.replica_prior(bare.model_copy(update={"seeds": apart, "spec_hash": "apart"})))
    assert found.df == 6
    assert found.sd == pytest.approx(10**0.5 * 1e-4)


def test_the_prior_is_the_measured_one_or_else_that_of_the_row(golden: Golden, bare: Golden):
    [spread] = golden.spreads
    assert loss_curves.prior_of(None, "te-current", PLAIN) == OWN
    assert loss_curves.prior_of(golden, "bf16", PLAIN) == Prior(1e-5, 6)
    assert loss_curves.prior_of(bare, "bf16", PLAIN) == OWN
    assert loss_curves.prior_of(golden, "te-current", PLAIN) == spread.prior == Prior(spread.tail_sd, 23)
    assert loss_curves.prior_of(golden, "te-nvfp4", PLAIN) == OWN
