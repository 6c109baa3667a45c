"""Every field of a comparison of losses: what stands for OLD and NEW, the notes, the device, the margin, and what cannot be said."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import two_sides
from fp8parity.judging import stats
from fp8parity.judging.compare.change import half_width, worst
from fp8parity.records.schema import NonFinite, Trajectory
from two_sides import POLICY, change, compared


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


def test_a_control_is_shown_by_its_mean_tail_loss_and_a_recipe_by_its_gaps(runs):
    """BF16 rises by 2%, and te-current with it, so its gap to its own BF16 stays where it was."""
    old, new = runs(), runs("2.13.0", control=0.02, recipe=0.02)
    found = compared(old, new)
    tail = old[0].tail
    means = [float(np.mean([r.loss[-tail:] for r in side if r.cell.is_control])) for side in (old, new)]
    bf16 = change(found, "bf16")
    assert (bf16.old, bf16.new) == tuple(f"{m:.4f}" for m in means)
    assert (bf16.moved, bf16.effect, bf16.recipe, bf16.notes, bf16.machine) == (
        "framework moved",
        "regression",
        None,
        [],
        "EPYC",
    )
    gaps = (
        [[side[2 * s + 1].loss for s in range(3)] for side in (old, new)],
        [[side[2 * s].loss for s in range(3)] for side in (old, new)],
    )
    texts = [
        stats.mean_interval(stats.relative_gaps(r, c, tail), POLICY.loss[0].alpha, None).text()
        for r, c in zip(*gaps, strict=True)
    ]
    recipe = change(found)
    assert [recipe.old, recipe.new] == texts
    assert (recipe.margin, recipe.moved) == ("0.50%", "framework moved")
    assert recipe.culprit == recipe.framework == bf16.framework
    assert found.sentence.startswith("Framework moved: bf16-nano-native loss +2.000% [")
    assert "framework moved: te-current-nano-emulated loss +2.000% [" in found.sentence


def test_another_device_is_named_with_both(runs):
    assert change(compared(runs(), runs("2.13.0", device="Xeon"))).machine == "EPYC -> Xeon"


def test_a_change_of_two_gaps_has_the_spread_of_both(runs):
    """Each gap has the standard deviation of the row, so their difference has sqrt(2) times as much."""
    row = POLICY.loss[0].model_copy(update={"sd": 1e-3, "sd_df": 20})
    found = change(compared(runs(), runs("2.13.0", noise=1.0), POLICY.model_copy(update={"loss": (row,)})))
    wide = stats.mean_interval(two_sides.JITTER[:3], row.alpha, stats.Prior(1e-3 * math.sqrt(2), 20))
    assert found.recipe and (found.recipe.low, found.recipe.high) == pytest.approx((wide.low, wide.high), rel=1e-2)


def test_sides_without_a_seed_in_common_cannot_be_compared(runs):
    """It was an IndexError."""
    found = change(
        compared([r for r in runs(seeds=4) if r.seed < 2], [r for r in runs("2.13.0", seeds=4) if r.seed >= 2])
    )
    assert (found.moved, found.notes) == ("cannot say", ["0 seeds in common; an interval needs 2"])


@pytest.mark.parametrize(("seeds", "moved"), [(2, "unchanged"), (1, "cannot say")])
def test_an_interval_needs_two_seeds_in_common(runs, seeds, moved):
    found = change(compared(runs(), runs("2.13.0", seeds=seeds)))
    assert found.moved == moved
    if seeds == 1:
        assert (found.effect, found.old, found.new, found.margin) == ("unknown", "-", "-", "-")
        assert found.notes == ["1 seeds in common; an interval needs 2"]


def test_a_control_that_stopped_is_no_control(runs):
    stopped = {"non_finite": NonFinite(step=7, where="x"), "loss": [1.0] * 7}
    new = [r.model_copy(update=stopped) if r.cell.is_control and r.seed == 1 else r for r in runs("2.13.0")]
    found = compared(runs(), new)
    assert change(found).notes == ["a seed has no complete BF16 control of the same machine and packages"]
    bf16 = change(found, "bf16")
    assert (bf16.moved, bf16.effect, bf16.old, bf16.new) == (
        "framework moved",
        "regression",
        "0 of 3 non-finite",
        "1 of 3 non-finite",
    )


@pytest.mark.parametrize(
    ("recipe", "bf16", "moved"),
    [(7, 7, "framework moved"), (8, 7, "framework moved"), (7, 8, "recipe moved"), (7, None, "recipe moved")],
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
        assert (change(found, "bf16").moved, change(found, "bf16").effect) == ("framework moved", effect)
        assert found.sentence.startswith(f"Framework moved: {change(found, 'bf16').name} ")


@pytest.mark.parametrize(("control", "effect"), [(0.02, "regression"), (-0.02, "gain")])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_bf16_that_moves_away_from_a_recipe_moves_alone(runs, control, effect, noise):
    """The recipe's own losses are equal to the bit, or within their noise."""
    found = compared(runs(), runs("2.13.0", control=control, noise=noise))
    assert (change(found).moved, change(found).effect, change(found).notes) == (
        "framework moved",
        effect,
        ["the recipe's own loss did not move"],
    )
    both = compared(runs(), runs("2.13.0", control=control, recipe=3 * control))
    assert (change(both).moved, change(both).notes) == ("both moved", [])
    assert found.sentence.startswith("Framework moved: bf16-nano-native loss ")


def test_a_recipe_that_stopped_on_both_sides_is_told_by_seed(runs):
    stopped = {"non_finite": NonFinite(step=7, where="x"), "loss": [1.0] * 7}
    sides = [
        [r.model_copy(update=stopped) if not r.cell.is_control and r.seed == 1 else r for r in side]
        for side in (runs(), runs("9"))
    ]
    found = change(compared(sides[0], sides[1]))
    assert (found.old, found.new) == ("1 of 3 non-finite", "1 of 3 non-finite")
    assert found.notes == 2 * ["seed 1 is non-finite at step 7"]


def test_a_run_that_ended_early_is_told_with_its_steps(runs):
    new = [
        r.model_copy(update={"loss": r.loss[:-1]}) if not r.cell.is_control and r.seed == 2 else r
        for r in runs("2.13.0")
    ]
    found = change(compared(runs(), new))
    steps = new[0].steps
    assert (found.moved, found.effect) == ("cannot say", "unknown")
    assert found.notes == [f"seed 2: {steps - 1} losses of {steps} steps"]


def test_seeds_of_two_schedules_are_not_averaged(runs):
    """Both sides left a seed of an older schedule in the folder. One length of the tail would be wrong for it."""
    sides = [
        [r.model_copy(update={"spec_hash": "older"}) if r.seed == 2 else r for r in side]
        for side in (runs(), runs("2.13.0"))
    ]
    for recipe in ("bf16", "te-current"):
        found = change(compared(sides[0], sides[1]), recipe)
        assert (found.moved, found.effect) == ("cannot say", "unknown")
        assert found.notes == ["seed 2: another spec hash than seed 0"]


def test_a_control_of_another_schedule_is_no_control(runs):
    """Both sides kept the BF16 runs of an older schedule. Gaps to them would be those of two schedules."""

    def older(side):
        return [r.model_copy(update={"spec_hash": "older"}) if r.cell.is_control and r.seed == 1 else r for r in side]

    found = change(compared(older(runs()), older(runs("2.13.0"))))
    assert (found.moved, found.effect) == ("cannot say", "unknown")
    assert found.notes == ["seed 1: its BF16 control has another spec hash"]


def test_what_was_never_quantized_is_named_on_both_sides(runs):
    """The note says where, whole, and one seed that equals BF16 is enough."""
    sides = [runs(), runs("2.13.0")]
    plain = [{r.seed: r.loss for r in side if r.cell.is_control} for side in sides]
    sides = [
        [r.model_copy(update={"loss": own[1]}) if not r.cell.is_control and r.seed == 1 else r for r in side]
        for side, own in zip(sides, plain, strict=True)
    ]
    found = change(compared(sides[0], sides[1]))
    assert found.notes == ["in OLD and NEW the losses equal BF16's to the bit: nothing was quantized"]
    assert (found.moved, found.effect) == ("cannot say", "unknown")


def test_each_class_has_its_word_and_margin(runs):
    """A shift in per cent shows its margin in per cent, a half-width has a sign, and a band without width is exact."""
    assert change(compared(runs(), runs("2.13.0", recipe=0.02))).margin == "0.50%"
    assert (half_width(0.5), half_width(0.0), half_width(float("nan"))) == ("+-0.5", "exact", "no band")


@pytest.mark.parametrize(
    ("effects", "first"),
    [
        (["gain", "none", "unknown", "regression"], "regression"),
        (["gain", "none", "unknown"], "unknown"),
        (["none", "gain"], "gain"),
        (["none"], "none"),
        ([], "none"),
    ],
)
def test_the_worst_effect_is_a_regression_then_an_unknown_one_then_a_gain(effects, first):
    assert worst(effects) == first


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
