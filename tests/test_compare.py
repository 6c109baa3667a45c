"""Losses of two record sets: planted regressions, gains and noise, each with its class and exit status."""

from __future__ import annotations

import math

import pytest
import two_sides
from fp8parity.judging import stats
from fp8parity.judging.compare import loss as losses
from fp8parity.judging.policy.rows import Rule
from fp8parity.records.schema import NonFinite, Probed, TrainerRun, Trajectory
from narrowed import some
from two_sides import POLICY, WHY, change, compared


@pytest.mark.parametrize(
    ("new", "moved", "effect", "code"),
    [
        ({"recipe": 0.02}, "recipe changed", "regression", 1),
        ({"recipe": 0.02, "control": 0.02}, "framework changed", "regression", 1),
        ({"recipe": 0.04, "control": 0.02}, "both changed", "regression", 1),
        ({"recipe": -0.02}, "recipe changed", "gain", 0),
        ({"noise": 1.0}, "noise", "none", 0),
        ({"recipe": 0.003}, "noise", "none", 0),
        ({"noise": 30.0}, "cannot say", "unknown", 2),
        ({}, "unchanged", "none", 0),
    ],
)
def test_planted_losses(runs, new, moved, effect, code):
    found = compared(runs(), runs("2.13.0", **new))
    assert (change(found).moved, change(found).effect, found.code) == (moved, effect, code)
    framework = new.get("control", 0.0)
    assert change(found, "bf16").moved == ("framework changed" if framework else "unchanged")
    assert some(change(found, "bf16").framework).mean == pytest.approx(framework, abs=1e-12)
    assert found.sentence.endswith("(torch 2.12.0 -> 2.13.0).")


def test_the_gap_is_paired_by_seed(runs):
    """The seeds' own spread cancels: what is left is the shift, to within the jitter that NEW adds."""
    found = change(compared(runs(), runs("2.13.0", recipe=0.02, noise=0.1)))
    recipe, framework = some(found.recipe), some(found.framework)
    assert recipe.n == 3
    assert recipe.low < 0.02 < recipe.high
    assert recipe.high - recipe.low < 2e-4
    assert framework.low == framework.high == 0


def test_runs_that_stopped_on_both_sides_say_nothing(runs):
    stopped = {"non_finite": NonFinite(step=7, where="x"), "loss": [1.0] * 7}
    old, new = (
        [r if r.cell.is_control or r.seed != 1 else r.model_copy(update=stopped) for r in side]
        for side in (runs(), runs("2.13.0"))
    )
    found = compared(old, new)
    assert (change(found).moved, change(found).effect, found.code) == ("cannot say", "unknown", 2)
    assert "seed 1 is non-finite at step 7" in change(found).notes


def test_runs_that_lost_a_probe_say_nothing(runs):
    """Without a golden, too: nothing shows that FP8 was on at that step."""
    lost = {"probe_steps": [10, 11], "probes": [Probed(step=11, sqnr=25.0, worst=20.0, where="w")]}
    new = [r if r.cell.is_control else r.model_copy(update=lost) for r in runs("2.13.0")]
    found = compared(runs(), new)
    assert (change(found).moved, found.code) == ("cannot say", 2)
    assert change(found).notes == ["in NEW: seed 0: the record lacks one of its gradient checks"]


FIRST_NORM = Rule(
    check=("loss parity",), metric=("first gradient norm",), recipe=("te-current", "bf16"), low=0.99, high=1.01, why=WHY
)
FIRST_STEP = POLICY.model_copy(update={"rule": (FIRST_NORM,)})


@pytest.mark.parametrize(
    ("recipe", "sides", "moved", "effect", "code", "words"),
    [
        (
            "te-current",
            (1,),
            "recipe changed",
            "regression",
            1,
            "first step in NEW: first gradient norm, step 0, seed 2: 0.959995 is below ",
        ),
        (
            "te-current",
            (0,),
            "recipe changed",
            "gain",
            0,
            "first step in OLD: first gradient norm, step 0, seed 2: 0.959995 is below ",
        ),
        (
            "te-current",
            (0, 1),
            "cannot say",
            "unknown",
            2,
            "first step in OLD: first gradient norm, step 0, seed 2: 0.959995 is below ",
        ),
        (
            "bf16",
            (1,),
            "framework changed",
            "unknown",
            2,
            "first step of BF16 in NEW relative to OLD's: first gradient norm, step 0, seed 2: 0.959995 is ",
        ),
    ],
)
def test_an_odd_first_step_moved_though_the_losses_did_not(runs, recipe, sides, moved, effect, code, words):
    both = [runs(), runs("2.13.0")]
    for i in sides:
        both[i] = [
            r.model_copy(update={"grad_norm": [0.96] + [1.0] * 11}) if r.cell.recipe == recipe else r for r in both[i]
        ]
    found = compared(both[0], both[1], FIRST_STEP)
    assert (change(found, recipe).moved, change(found, recipe).effect) == (moved, effect)
    assert change(found, recipe).notes[0].startswith(words)
    assert found.code == code
    assert recipe != "bf16" or change(found, "te-current").moved == moved


@pytest.mark.parametrize(("side", "effect", "code"), [(1, "regression", 1), (0, "unknown", 2)])
def test_a_silent_fall_back_trains_well_and_is_no_gain(runs, side, effect, code):
    """The gap to BF16 shrinks from 0.1% to 0: inside every margin, and nothing is quantized any more."""
    sides = [runs(recipe=0.001), runs("2.13.0", recipe=0.001)]
    bf16 = {r.seed: r.loss for r in sides[side] if r.cell.recipe == "bf16"}
    sides[side] = [r if r.cell.recipe == "bf16" else r.model_copy(update={"loss": bf16[r.seed]}) for r in sides[side]]
    found = compared(*sides)
    assert (change(found).effect, found.code) == (effect, code)
    assert f"in {('OLD', 'NEW')[side]} the losses of seed 0 equal BF16's to the bit" in change(found).notes[0]


@pytest.mark.parametrize("field", ["initial_weights", "spec_hash", "fingerprint"])
def test_other_experiments_are_never_compared(runs, field):
    found = compared(runs(), runs("2.13.0", **{field: "other"}))
    assert change(found).moved == "cannot say"
    assert change(found).notes[0] == f"seed 0: another {field.replace('_', ' ')}"
    assert found.code == 2


@pytest.mark.parametrize("sides", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    "fault", [{"hyperparameters": {"beta2": (0.95, 0.949)}}, {"inventory": []}], ids=["hyper-parameters", "inventory"]
)
def test_runs_that_cannot_be_judged_are_not_unchanged(runs, sides, fault):
    made = [runs(), runs("2.13.0")]
    for i in sides:
        made[i] = [r if r.cell.is_control else r.model_copy(update=fault) for r in made[i]]
    found = compared(*made)
    fails = "hyperparameters" in fault  # an empty inventory is an error, which says nothing about the recipe
    decided = {(0,): ("gain", 0), (1,): ("regression", 1) if fails else ("unknown", 2)}
    assert (change(found).effect, found.code) == decided.get(sides, ("unknown", 2))
    assert [note[:6] for note in change(found).notes] == [("in OLD", "in NEW")[i] for i in sides]


def test_a_change_of_two_gaps_has_the_spread_of_both(runs, monkeypatch):
    """Each gap has the measured standard deviation, so their difference has sqrt(2) times as much."""
    monkeypatch.setattr(losses, "prior_of", lambda golden, recipe: stats.Prior(1e-3, 20))
    found = change(compared(runs(), runs("2.13.0", noise=1.0)))
    wide = stats.mean_interval(two_sides.JITTER[:3], 0.05, stats.Prior(1e-3 * math.sqrt(2), 20))
    assert found.recipe and (found.recipe.low, found.recipe.high) == pytest.approx((wide.low, wide.high), rel=1e-2)


@pytest.mark.parametrize(
    ("recipe", "bf16", "moved"),
    [(7, 7, "framework changed"), (8, 7, "framework changed"), (7, 8, "recipe changed"), (7, None, "recipe changed")],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_recipe_that_stopped_with_bf16_is_not_to_blame(runs, side, recipe, bf16, moved):
    def stopped(r: Trajectory) -> Trajectory:
        step = bf16 if r.cell.is_control else recipe
        return (
            r.model_copy(update={"non_finite": NonFinite(step=step, where="x"), "loss": [1.0] * step})
            if step and r.seed == 1
            else r
        )

    sides = [runs(), runs("2.13.0")]
    sides[side] = [stopped(r) for r in sides[side]]
    found = compared(*sides)
    effect = ("gain", "regression")[side]
    assert (change(found).moved, change(found).effect) == (moved, effect)
    if bf16:
        assert (change(found, "bf16").moved, change(found, "bf16").effect) == ("framework changed", effect)
        assert found.sentence.startswith(f"BF16 changed: {change(found, 'bf16').name} ")


@pytest.mark.parametrize(("control", "effect", "noise"), [(0.02, "regression", 0.0), (-0.02, "gain", 0.5)])
def test_bf16_that_moves_away_from_a_recipe_moves_alone(runs, control, effect, noise):
    """The recipe's own losses are equal to the bit, or within their noise."""
    found = compared(runs(), runs("2.13.0", control=control, noise=noise))
    assert (change(found).moved, change(found).effect, change(found).notes) == (
        "framework changed",
        effect,
        ["the recipe's own loss did not change"],
    )
    both = compared(runs(), runs("2.13.0", control=control, recipe=3 * control))
    assert (change(both).moved, change(both).notes) == ("both changed", [])
    assert found.sentence.startswith("BF16 changed: bf16-nano-native loss ")


def test_a_shift_of_bf16_is_judged_by_the_row_of_bf16(trajectory):
    """A recipe's row that allows BF16 less made "cannot say" of it, while BF16's own cell was told as noise. Its row allows 0.5%."""
    strict = POLICY.loss[0].model_copy(update={"recipe": ("te-current",), "bf16_margin": 0.0001})
    held = POLICY.model_copy(update={"loss": (*POLICY.loss, strict)})
    found = compared(
        two_sides.runs(trajectory), two_sides.runs(trajectory, "2.13.0", control=0.002, recipe=0.002), held
    )
    assert (found.code, [(c.moved, c.effect) for c in found.changes if c.what == "loss"]) == (
        0,
        [("noise", "none")] * 2,
    )


def test_runs_of_a_trainer_without_norms_are_compared(runs):
    program = TrainerRun(file="t.toml", command=["train"], status=0, output=[], log="log.jsonl")
    bare = {"trainer": program, "validation": [], "grad_norm": []}
    assert compared(runs(**bare), runs("2.13.0", **bare)).code == 0
    assert compared(runs(**bare), runs("2.13.0", recipe=0.02, **bare)).code == 1
