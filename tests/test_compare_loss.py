"""Every field of a comparison of losses: what stands for OLD and NEW, the notes, the device, the margin, and what cannot be said."""

from __future__ import annotations

import math
from functools import partial

import pytest
import two_sides
from fp8parity.judging import stats
from fp8parity.records.schema import NonFinite, Trajectory
from two_sides import POLICY, change, compared


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


def test_a_change_of_two_gaps_has_the_spread_of_both(runs):
    """Each gap has the standard deviation of the row, so their difference has sqrt(2) times as much."""
    row = POLICY.loss[0].model_copy(update={"sd": 1e-3, "sd_df": 20})
    found = change(compared(runs(), runs("2.13.0", noise=1.0), POLICY.model_copy(update={"loss": (row,)})))
    wide = stats.mean_interval(two_sides.JITTER[:3], row.alpha, stats.Prior(1e-3 * math.sqrt(2), 20))
    assert found.recipe and (found.recipe.low, found.recipe.high) == pytest.approx((wide.low, wide.high), rel=1e-2)


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
