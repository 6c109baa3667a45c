"""What happens along a run: spikes, late gaps, trends, gradient norms and validations, against bands from paired runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fp8parity.judging import loss, spreads
from fp8parity.judging.loss_goldens import Golden, from_runs
from fp8parity.judging.measured_numbers import MeasuredNumbers
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory

Make = Callable[..., Trajectory]
STEPS, TAIL, SEEDS = 160, 40, range(3)
ROW = LossRow(
    margin=0.001, seeds=(3,), sd=1e-4, sd_df=20, drift=2e-4, band_least=5e-4, norm_least=0.02, learnt=0.5,
    why="made-up runs with a noise of 0.01%",
)  # fmt: skip


@pytest.fixture
def run(trajectory: Make) -> Make:
    """A run of 160 steps whose losses are those of its seed plus noise of 0.01% per window, with a ``change`` (steps -> factor)."""

    def make(recipe: str = "bf16", seed: int = 0, noise: int = 0, change: np.ndarray | float = 0.0, **more: object) -> Trajectory:
        base = trajectory(recipe, seed)
        clean = np.linspace(5.0 + 0.01 * seed, 3.5, STEPS)
        jitter = np.repeat(np.random.default_rng([noise, seed]).normal(0, 1e-4, STEPS // 8), 8) if noise else 0.0
        values = clean * (1 + jitter) * (1 + change)
        last = float(values[-1])
        given = {
            "loss": values.tolist(),
            "grad_norm": (np.full(STEPS, 2.0) * (1 + 10 * jitter)).tolist(),
            "validation": [(STEPS - 1, last)],
        }
        given |= {"schedule": base.schedule | {"steps": STEPS, "tail": TAIL}, "unigram": 5.0, "bigram": 4.0}
        return base.model_copy(update=given | more)

    return make


@pytest.fixture(autouse=True)
def outside_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI never records goldens, and these tests make one."""
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def golden(run: Make) -> Golden:
    """BF16 of three seeds with two replicas each, and the spread of four sound recipes."""
    control = [run(seed=s) for s in SEEDS]
    replicas = [run(seed=s, noise=k, change=0.0, variant=f"replica{k}") for s in SEEDS for k in (1, 2)]
    quiet = [
        r.model_copy(update={"loss": (np.asarray(r.loss) * 0.1 + np.asarray(c.loss) * 0.9).tolist()})
        for r in replicas
        for c in control
        if c.seed == r.seed
    ]
    made = from_runs([*control, *quiet], [])
    return spreads.with_spread(made, [(run("te-current", s, noise=3), run(seed=s)) for s in range(100, 124)], window=8)


def judged(golden: Golden, runs: Sequence[Trajectory], controls: Sequence[Trajectory], tmp_path, row: LossRow = ROW) -> Verdict:
    return loss.judge(runs, controls, golden, Policy(path=tmp_path, loss=(row,)), MeasuredNumbers())


def at(start: int, stop: int, value: float) -> np.ndarray:
    """A change of some steps only."""
    found = np.zeros(STEPS)
    found[start:stop] = value
    return found


def test_a_golden_holds_replicas_and_runs_are_compared_with_their_mean(golden: Golden):
    seed = golden.seeds[1]
    assert [r.variant for r in seed.replicas] == ["replica1", "replica2"]
    assert seed.mean_loss == pytest.approx(np.mean([seed.loss, *(r.loss for r in seed.replicas)], axis=0))
    [spread] = golden.spreads
    assert (spread.recipes, spread.runs, spread.seeds, len(spread.loss), len(spread.grad_norm)) == (["te-current"], 24, 24, 20, 20)
    assert np.mean(spread.loss) == pytest.approx(1e-4, rel=0.3)
    assert np.mean(spread.grad_norm) == pytest.approx(1e-3, rel=0.3)


def test_sound_runs_pass(golden: Golden, run: Make, tmp_path):
    """Twenty draws of noise, none red. The control equals its golden but for noise of 0.001%."""
    controls = [run(seed=s) for s in SEEDS]
    assert judged(golden, controls, controls, tmp_path).status == "pass"
    for noise in range(10, 30):
        found = judged(golden, [run("te-current", s, noise) for s in SEEDS], controls, tmp_path)
        assert (found.status, found.lines[1][0]) == ("pass", "to control"), found.message()


FAULTS = [
    ("spike", at(80, 88, 0.004), "the loss left the step band", "first out"),
    ("dip", at(80, 88, -0.004), "the loss left the step band", "first out"),
    ("slow start", at(0, 40, 0.003), "the loss left the step band", "first out"),
    ("last window", at(152, 160, 0.006), "the gap to BF16 is outside the margin", "first out"),
    ("all steps", at(0, 160, 0.0025), "the gap to BF16 is outside the margin", "first out"),
    ("too good", at(0, 160, -0.04), "such a gain is a fault", "first out"),
]


@pytest.mark.parametrize(("change", "headline", "line"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_planted_gaps(golden: Golden, run: Make, tmp_path, change: np.ndarray, headline: str, line: str):
    runs = [run("te-current", s, 10, change) for s in SEEDS]
    found = judged(golden, runs, [run(seed=s) for s in SEEDS], tmp_path)
    assert found.status == "fail"
    assert headline in found.headline
    assert line in dict(found.lines)


def test_a_gap_that_grows_within_the_tail(golden: Golden, run: Make, tmp_path):
    """Its mean over the tail is zero, and no window leaves a band of 1%."""
    change = at(120, 140, -0.002) + at(140, 160, 0.002)
    row = ROW.model_copy(update={"band_least": 0.01})
    found = judged(golden, [run("te-current", s, 10, change) for s in SEEDS], [run(seed=s) for s in SEEDS], tmp_path, row)
    assert (found.status, found.headline) == ("fail", "the gap to BF16 changes within the tail by more than the margin")
    assert "grows within the tail: +0.4" in dict(found.lines)["trend"]


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_gradient_norms_are_judged_along_the_run(golden: Golden, run: Make, tmp_path, factor: float):
    runs = [run("te-current", s, 10) for s in SEEDS]
    norms = [(np.asarray(r.grad_norm) * np.where(np.arange(STEPS) < 100, 1, factor)).tolist() for r in runs]
    runs = [r.model_copy(update={"grad_norm": n}) for r, n in zip(runs, norms, strict=True)]
    found = judged(golden, runs, [run(seed=s) for s in SEEDS], tmp_path)
    assert (found.status, found.headline) == ("fail", "the gradient norm left its band around BF16's")
    assert dict(found.lines)["gradient norm"].startswith("step 96, seed 0: ")


def test_the_validation_loss_is_judged(golden: Golden, run: Make, tmp_path):
    controls = [run(seed=s) for s in SEEDS]
    high = [run("te-current", s, 10).model_copy(update={"validation": [(159, 3.5 * 1.004 + 1e-4 * s)]}) for s in SEEDS]
    found = judged(golden, high, controls, tmp_path)
    assert (found.status, found.headline) == ("fail", "the last validation loss is not BF16's")
    for factors in ((0.99, 0.99, 0.99), (1.05, 1.15, 1.4), (1.0, 1.0, 1.004)):
        wrong = [run("te-current", s, 10).model_copy(update={"validation": [(159, 3.5 * f)]}) for s, f in zip(SEEDS, factors, strict=True)]
        assert judged(golden, wrong, controls, tmp_path).status == "fail"
    high = [c.model_copy(update={"validation": [(159, 3.5 * 1.0008)]}) for c in controls]
    assert judged(golden, high, high, tmp_path).status == "drift"
    lost = [run("te-current", s, 10).model_copy(update={"validation": [(100, float("nan")), (159, 3.5)]}) for s in SEEDS]
    found = judged(golden, lost, controls, tmp_path)
    assert (found.status, found.headline) == ("fail", "seed 0 has a non-finite validation loss")


def test_bf16_is_held_to_its_golden_as_tightly_as_it_repeats(golden: Golden, run: Make, tmp_path):
    """A shift of 0.05% is half of the recipe's margin. For BF16 it is drift, and a recipe with the same shift is not blamed."""
    moved = [run(seed=s, change=5e-4) for s in SEEDS]
    found = judged(golden, moved, moved, tmp_path)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved")
    shifted = [run("te-current", s, 10, 0.0025) for s in SEEDS]
    found = judged(golden, shifted, [run(seed=s, change=0.0025) for s in SEEDS], tmp_path)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved, not the recipe")


def test_a_recipe_with_a_fault_of_its_own_is_blamed_although_bf16_moved(golden: Golden, run: Make, tmp_path):
    controls = [run(seed=s, change=5e-4) for s in SEEDS]
    runs = [run("te-current", s, 10, 5e-4 + at(80, 88, 0.2)) for s in SEEDS]
    found = judged(golden, runs, controls, tmp_path)
    assert (found.status, found.loss and found.loss.moved) == ("fail", "framework and recipe moved")


def test_norms_of_bf16_itself_are_drift(golden: Golden, run: Make, tmp_path):
    double = np.where(np.arange(STEPS) < 100, 1, 2)
    controls = [run(seed=s).model_copy(update={"grad_norm": (2.0 * double).tolist()}) for s in SEEDS]
    assert judged(golden, controls, controls, tmp_path).status == "drift"
    runs = [run("te-current", s, 10) for s in SEEDS]
    runs = [r.model_copy(update={"grad_norm": (np.asarray(r.grad_norm) * double).tolist()}) for r in runs]
    found = judged(golden, runs, controls, tmp_path)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved, not the recipe")


def test_without_replicas_a_spike_of_both_is_the_frameworks(golden: Golden, run: Make, tmp_path):
    bare = golden.model_copy(update={"spreads": [], "seeds": [s.model_copy(update={"replicas": []}) for s in golden.seeds]})
    row = ROW.model_copy(update={"drift": None})
    controls = [run(seed=s, change=at(80, 88, 0.3)) for s in SEEDS]
    found = judged(bare, controls, controls, tmp_path, row)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved")
    found = judged(bare, [run("te-current", s, 10, at(80, 88, 0.3)) for s in SEEDS], controls, tmp_path, row)
    assert (found.status, found.loss and found.loss.moved) == ("drift", "the framework moved, not the recipe")


def test_a_recipe_without_a_spread_is_said_to_be(golden: Golden, run: Make, tmp_path):
    found = judged(golden, [run("te-nvfp4", s, 10) for s in SEEDS], [run(seed=s) for s in SEEDS], tmp_path)
    assert [text for text in found.unmeasured if "spread" in text] == [
        "no spread of te-nvfp4 on nano; its step band has one width, and its norms are not judged"
    ]


def test_a_trend_of_bf16_is_held_to_its_replicas(golden: Golden, run: Make, tmp_path):
    """Half a thousandth up, half a thousandth down: nothing for a recipe's margin, and no window of BF16 leaves its band."""
    controls = [run(seed=s, change=at(120, 140, -4e-4) + at(140, 160, 4e-4)) for s in SEEDS]
    found = judged(golden, controls, controls, tmp_path)
    assert found.status == "drift"
    assert "grows within the tail: +0.08%" in dict(found.lines)["trend"]


def test_a_spike_of_bf16_itself_is_drift(golden: Golden, run: Make, tmp_path):
    controls = [run(seed=s, change=at(80, 88, 0.0015)) for s in SEEDS]
    found = judged(golden, controls, controls, tmp_path)
    assert found.status == "drift"
    assert dict(found.lines)["first out"].startswith("step 80, seed 0: ")


def test_a_model_that_has_learnt_no_context_is_no_basis(golden: Golden, run: Make, tmp_path):
    controls = [run(seed=s, unigram=4.0, bigram=3.0) for s in SEEDS]
    assert (
        judged(golden, [run("te-current", s, 10, 0.3) for s in SEEDS], [run(seed=s, change=0.3) for s in SEEDS], tmp_path).status == "drift"
    )
    found = judged(golden, [run("te-current", s, 10) for s in SEEDS], controls, tmp_path)
    assert found.status == "inconclusive"
    assert "BF16 has gone 31% of the way from the unigram to the bigram entropy; below 50%" in found.headline


def test_spreads_are_refused(golden: Golden, run: Make):
    control = run(seed=0)
    dirty = control.provenance.model_copy(update={"dirty": True})
    with pytest.raises(ValueError, match="uncommitted changes"):
        spreads.with_spread(golden, [(run("te-current", 0, 1, provenance=dirty), control)], 8)
    both = spreads.with_spread(golden, [(run(r, 0, 1), control) for r in ("te-current", "te-block")], 8)
    with pytest.raises(ValueError, match="the spread of te-block rests on the same row"):
        spreads.with_spread(both, [(run("te-current", 0, 1), control)], 8)
    with pytest.raises(ValueError, match="schedule differ"):
        spreads.with_spread(golden, [(run("te-current", 0, 1), run(spec_hash="other"))], 8)


def test_pairs_are_runs_with_a_control_of_their_machine(run: Make):
    other = run().provenance.model_copy(update={"device": "another"})
    first, second, lost = run("te-current", 0, 1), run("te-block", 5, 1), run("te-current", 1, 1, provenance=other)
    records = [first, second, lost, run(seed=0), run(seed=5), run(seed=1), run(seed=0, variant="replica1")]
    assert spreads.pairs(records) == [(first, records[3]), (second, records[4])]
