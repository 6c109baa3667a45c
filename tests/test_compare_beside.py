"""What is compared beside the training loss, also where no golden exists: the last validation loss and the gradient norm of the last steps.
Each is told only if it moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import pytest
import two_sides
from fp8parity.judging.compare import Comparison, quantities
from fp8parity.judging.compare.change import Shift
from fp8parity.records.schema import Trajectory
from two_sides import POLICY, change, compared

Shifts = Sequence[float]
"""The relative shift of each seed."""
NONE, BESIDE = (0.0, 0.0, 0.0), ("validation loss", "gradient norm")


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


def validated(r: Trajectory, shift: float) -> Trajectory:
    return r.model_copy(update={"validation": [(step, loss * (1 + shift)) for step, loss in r.validation]})


def steeper(r: Trajectory, shift: float) -> Trajectory:
    return r.model_copy(update={"grad_norm": [norm * (1 + shift) for norm in r.grad_norm]})


CHANGES: dict[str, Callable[[Trajectory, float], Trajectory]] = dict(zip(BESIDE, (validated, steeper), strict=True))


def moved(records: Sequence[Trajectory], what: str, control: Shifts = NONE, recipe: Shifts = NONE) -> list[Trajectory]:
    """The runs with the validation loss, or the gradient norms, of each seed shifted."""
    return [CHANGES[what](r, (control if r.cell.is_control else recipe)[r.seed]) for r in records]


def told(found: Comparison, what: str) -> list[str]:
    """The recipes that moved, what moved, and its effect."""
    return [f"{c.cell.recipe}: {c.moved}, {c.effect}" for c in found.changes if c.what == what]


def about(shift: float) -> Shifts:
    return (shift, shift + 1e-4, shift - 1e-4)


@pytest.mark.parametrize(
    ("what", "control", "recipe", "result", "code"),
    [
        ("validation loss", NONE, about(0.02), ["te-current: recipe moved, regression"], 1),
        ("validation loss", NONE, about(-0.02), ["te-current: recipe moved, gain"], 0),
        ("validation loss", about(0.02), about(0.02), ["bf16: framework moved, regression", "te-current: framework moved, regression"], 1),
        ("validation loss", about(0.02), NONE, ["bf16: framework moved, regression", "te-current: framework moved, regression"], 1),
        ("validation loss", about(0.02), about(0.06), ["bf16: framework moved, regression", "te-current: both moved, regression"], 1),
        ("validation loss", NONE, about(0.004), [], 0),
        ("validation loss", NONE, (-0.001, 0.009, 0.0), [], 0),
        ("validation loss", NONE, (0.016, 0.0, 0.0), ["te-current: recipe moved, regression"], 1),
        ("validation loss", NONE, (-0.016, 0.0, 0.0), ["te-current: recipe moved, gain"], 0),
        ("gradient norm", NONE, about(0.04), ["te-current: recipe moved, unknown"], 2),
        ("gradient norm", NONE, about(-0.04), ["te-current: recipe moved, unknown"], 2),
        ("gradient norm", about(0.04), about(0.04), ["bf16: framework moved, unknown", "te-current: framework moved, unknown"], 2),
        ("gradient norm", about(0.04), NONE, ["bf16: framework moved, unknown", "te-current: framework moved, unknown"], 2),
        ("gradient norm", NONE, about(0.019), [], 0),
        ("gradient norm", NONE, (-0.1, 0.3, 0.0), [], 0),
    ],
)  # fmt: skip
def test_what_moves_beside_the_training_loss_is_told(runs, what, control, recipe, result, code):
    """A norm has no worse side, so a moved one is undecided. Where seeds disagree, the interval is wide, and nothing is told of it."""
    found = compared(runs(), moved(runs("2.13.0"), what, control, recipe))
    assert (told(found, what), found.code) == (result, code)
    assert {change(found, recipe).effect for recipe in ("bf16", "te-current")} == {"none"}
    others = {c.what for c in found.changes} - {"loss", "step time", what}
    assert others == set()


def test_the_answer_says_which_number_moved_by_how_much(runs):
    found = compared(runs(), moved(runs("2.13.0"), "validation loss", about(0.02), about(0.02)))
    assert found.sentence.startswith(
        "Framework moved: bf16-nano-native validation loss +2.000% [+1.983%, +2.017%], worse; "
    )
    bf16 = change(found, "bf16", "validation loss")
    old = [r for r in runs() if r.cell.is_control]
    mean = sum(r.validation[-1][1] for r in old) / 3
    assert (bf16.old, bf16.margin, bf16.notes) == (f"{mean:.4f}", "0.50%", [])
    steep = compared(runs(), moved(runs("2.13.0"), "gradient norm", NONE, about(0.04)))
    assert steep.sentence.startswith(
        "Recipe moved: te-current-nano-emulated gradient norm +4.000% [+3.983%, +4.017%], undecided"
    )
    assert change(steep, kind="gradient norm").margin == "2.00%"


def test_a_seed_that_moved_alone_is_named(runs):
    found = compared(runs(), moved(runs("2.13.0"), "validation loss", NONE, (0.0, 0.016, 0.0)))
    made = change(found, kind="validation loss")
    assert made.notes == ["seed 1 moved by +1.601%, and one seed may by 1.50%"]


@pytest.mark.parametrize(
    ("loss", "validation", "lines", "code"),
    [
        (0.02, 0.05, [], 1),
        (-0.02, 0.05, ["te-current: recipe moved, regression"], 1),
        (-0.02, 0.0, [], 0),
    ],
)
def test_what_the_loss_says_already_is_not_told_again(runs, loss, validation, lines, code):
    """If the training loss is better, the validation loss may still be worse. A made-up run's validation loss moves with its loss."""
    found = compared(runs(), moved(runs("2.13.0", recipe=loss), "validation loss", NONE, about(validation)))
    assert (told(found, "validation loss"), found.code) == (lines, code)


def test_a_row_says_how_far_norms_may_move(runs):
    row = POLICY.loss[0].model_copy(update={"min_norm_band": 0.05})
    found = compared(
        runs(), moved(runs("2.13.0"), "gradient norm", NONE, about(0.04)), POLICY.model_copy(update={"loss": (row,)})
    )
    assert (found.code, told(found, "gradient norm")) == (0, [])


def test_norms_of_zero_are_not_compared(runs):
    flat = {"grad_norm": [0.0] * 12}
    assert compared(runs(**flat), runs("2.13.0", **flat)).code == 0
    assert compared(runs(**flat), runs("2.13.0")).code == 0


def test_norms_of_the_first_steps_do_not_count(runs):
    """A norm of 0 in the last steps has no relative shift. In the first ones it hides nothing."""
    early = [
        r.model_copy(update={"grad_norm": [0.0] * (len(r.grad_norm) - r.tail) + r.grad_norm[-r.tail :]})
        for r in moved(runs("2.13.0"), "gradient norm", NONE, about(0.04))
    ]
    late = [
        r.model_copy(update={"grad_norm": [*r.grad_norm[:-1], 0.0]})
        for r in moved(runs("2.13.0"), "gradient norm", NONE, about(0.04))
    ]
    assert told(compared(runs(), early), "gradient norm") == ["te-current: recipe moved, unknown"]
    assert told(compared(runs(), late), "gradient norm") == []


def test_a_norm_that_moved_with_a_worse_loss_is_not_told(runs):
    found = compared(runs(), moved(runs("2.13.0", recipe=0.02), "gradient norm", NONE, about(0.04)))
    assert (told(found, "gradient norm"), found.code) == ([], 1)


def shift(size: str, effect: str) -> Shift:
    return Shift(mean=0.0, low=0.0, high=0.0, n=3, margin=0.005, size=size, effect=effect, text="")  # type: ignore[arg-type]  # two of the names


@pytest.mark.parametrize(
    ("what", "given", "values", "result"),
    [
        (BESIDE[0], ("unknown", "unknown"), (0.0, 0.0, 0.0), ("noise", "none")),
        (BESIDE[0], ("unknown", "unknown"), (0.015, -0.015, 0.0), ("noise", "none")),
        (BESIDE[0], ("unknown", "unknown"), (0.0151, 0.0, 0.0), ("moved", "regression")),
        (BESIDE[0], ("noise", "none"), (-0.0151, 0.0, 0.0), ("moved", "gain")),
        (BESIDE[0], ("moved", "gain"), (0.0151, 0.0, 0.0), ("moved", "gain")),
        (BESIDE[1], ("unknown", "unknown"), (0.5, 0.0, 0.0), ("noise", "none")),
        (BESIDE[1], ("moved", "regression"), (0.5, 0.5, 0.5), ("moved", "unknown")),
        (BESIDE[1], ("equal", "none"), (0.0, 0.0, 0.0), ("equal", "none")),
        ("loss", ("unknown", "unknown"), (0.5, 0.0, 0.0), ("unknown", "unknown")),
        ("loss", ("moved", "regression"), (0.5, 0.0, 0.0), ("moved", "regression")),
    ],
)  # fmt: skip
def test_what_a_shift_means(what, given, values, result):
    """One seed may move by three margins of the validation loss, 1.5% here."""
    [quantity] = [q for q in (quantities.LOSS, *quantities.BESIDE) if q.name == what]
    made, _ = quantity.judged(shift(*given), (0, 1, 2), values)
    assert (made.size, made.effect) == result


def test_the_measured_spread_of_the_training_loss_is_that_of_no_other_quantity():
    assert [q.pooled for q in (quantities.LOSS, *quantities.BESIDE)] == [True, False, False]
