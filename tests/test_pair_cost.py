"""What a gap costs, in whole sentences: how much later FP8 reaches BF16's loss, what that eats of its speed-up, and its gradient norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fp8parity.judging.pair.aligned import Aligned, align
from fp8parity.judging.pair.cost import cost, gradient_norms
from fp8parity.judging.pair.finding import Asked, Finding
from fp8parity.judging.stats import Interval
from plain_runs import both, noisy, run

FALLING = [5.0 - 0.005 * i for i in range(400)]
"""The mean over the last 80 points is 3.2025, so a gap of 0.1% is 0.64 steps of 0.005 nats."""
LEVEL = float(np.mean(FALLING[-80:]))


def later(gap: float, half: float = 0.0, asked: Asked | None = None, **changes: Any) -> str:
    found = cost([both(FALLING, **changes)], Interval(gap, gap - half, gap + half, 1, 0.9), asked or Asked())
    assert (found.name, found.status, found.decisive) == ("equal loss", None, False)
    return found.text


def steps(gap: float) -> float:
    return gap * LEVEL / 0.005


def test_a_loss_that_does_not_fall_shows_no_cost():
    for flat in ([2.0] * 400, [2.0 + 0.001 * i for i in range(400)]):
        found = cost([both(flat)], Interval(0.01, 0.0, 0.02, 1, 0.9), Asked())
        assert found == Finding("equal loss", "cannot say: BF16's loss is flat in the tail")


@pytest.mark.parametrize("gap", [-0.01, 0.0])
def test_a_lower_loss_costs_nothing(gap):
    low, high = steps(gap - 0.005) / 400, steps(gap + 0.005) / 400
    assert later(gap, 0.005) == f"FP8 needs no more steps than BF16 (between {low:+.1%} and {high:+.1%} of the run)"
    assert later(gap, 0.005, axis="samples").startswith("FP8 needs no more samples than BF16 (")


def test_a_higher_loss_is_reached_later():
    """0.02 of 3.2025 nats at 0.005 nats a step is 12.81 steps of 400. Tokens are told where steps are counted and their tokens logged."""
    share = "3.2% [+1.6%, +4.8%] of the run"
    assert later(0.02, 0.01) == f"FP8 reaches BF16's loss 13 steps later: {share}"
    batch = [1.0, 3e9] + [1000.0] * 398
    assert (
        later(0.02, 0.01, batch=batch, batch_unit="tokens")
        == f"FP8 reaches BF16's loss 13 steps later, 1.28e+04 tokens: {share}"
    )
    assert later(0.02, 0.01, batch=batch, axis="tokens") == f"FP8 reaches BF16's loss 13 tokens later: {share}"


def test_half_a_step_is_a_cost():
    """0.1% of 3.2025 nats at 0.005 nats a step is 0.64 steps."""
    assert later(0.001) == "FP8 reaches BF16's loss 1 steps later: 0.2% [+0.2%, +0.2%] of the run"


def test_the_tokens_are_bf16_s_and_the_share_is_of_the_whole_run():
    """The last point of this run is step 640, and its fall goes on at the same rate."""
    points = [*range(1, 400), 640]
    loss = [5.0 - 0.005 * at for at in points]
    given: dict[str, Any] = {"points": points, "batch_unit": "tokens"}
    pair = align(run(loss, batch=[1000.0] * 400, **given), run(loss, "fp8", batch=[500.0] * 400, **given))
    found = cost([pair], Interval(0.02, 0.02, 0.02, 1, 0.9), Asked()).text
    behind = 0.02 * float(np.mean(loss[-80:])) / 0.005
    said = f"{behind / 640:.1%} [{behind / 640:+.1%}, {behind / 640:+.1%}]"
    assert found == f"FP8 reaches BF16's loss {behind:.0f} steps later, {behind * 1000:.3g} tokens: {said} of the run"


def test_the_cost_is_that_of_the_tail_that_was_asked_for():
    """Twice as steep, the fall costs half as much."""
    steep = [6.0 - 0.01 * i for i in range(200)] + [4.0 - 0.005 * i for i in range(200)]
    for tail, expected in ((0.2, 13), (0.5, 14)):
        found = cost([both(steep)], Interval(0.02, 0.02, 0.02, 1, 0.9), Asked(tail=tail))
        assert found.text.startswith(f"FP8 reaches BF16's loss {expected} steps later: ")


@pytest.mark.parametrize(
    ("asked", "bf16", "fp8", "says"),
    [
        (None, [], [], ""),
        (1.25, [], [], "; a speed-up of 1.250x is 1.211x at equal loss, 16% of it is eaten"),
        (None, [0.5], [0.4], "; a speed-up of 1.250x is 1.211x at equal loss, 16% of it is eaten"),
        (1.5, [0.5], [0.4], "; a speed-up of 1.500x is 1.453x at equal loss, 9% of it is eaten"),
        (1.0, [], [], "; a step of FP8 is not faster (1.000x), so nothing pays for it"),
        (None, [0.5], [0.5], "; a step of FP8 is not faster (1.000x), so nothing pays for it"),
        (None, [0.4], [0.5], "; a step of FP8 is not faster (0.800x), so nothing pays for it"),
        (1.01, [], [], "; a speed-up of 1.010x is 0.979x at equal loss, 100% of it is eaten"),
    ],
)
def test_what_a_later_end_eats_of_the_speed_up(asked, bf16, fp8, says):
    """The given speed-up comes before the one of the medians of the logged times. Without either, nothing is said."""
    odd = [[*seconds * 399, 9.0] for seconds in (bf16, fp8)]
    pair = align(run(FALLING, seconds=odd[0] if bf16 else []), run(FALLING, "fp8", seconds=odd[1] if fp8 else []))
    found = cost([pair], Interval(0.02, 0.01, 0.03, 1, 0.9), Asked(speed_up=asked))
    assert found.text == f"FP8 reaches BF16's loss 13 steps later: 3.2% [+1.6%, +4.8%] of the run{says}"


def norms(fp8: Sequence[float], bf16: float = 1.0) -> Aligned:
    return align(run(noisy(len(fp8)), grad_norm=[bf16] * len(fp8)), run(noisy(len(fp8)), "fp8", grad_norm=list(fp8)))


ODD = "; away from 1 from the first steps on: a wrong scale, cold scales, or a lost microbatch?"


@pytest.mark.parametrize(("ratio", "odd"), [(1.0, ""), (1.0625, ODD), (0.9375, ODD), (1.049, ""), (0.951, "")])
def test_the_gradient_norms_of_the_first_tenth_and_of_the_tail(ratio, odd):
    """The first tenth has 40 of 400 points. The odd values beside it and beside the tail of 80 points count for nothing."""
    values = [ratio - 0.25] * 20 + [ratio + 0.25] * 20 + [9.0] * 280 + [1.5] * 80
    text = f"FP8 / BF16: {ratio:.3f} in the first tenth, 1.500 in the tail, 99% of them below 1.500{odd}"
    assert gradient_norms([norms([2 * v for v in values], 2.0)], Asked()) == Finding("gradient norm", text)


def test_the_first_tenth_has_five_points_or_more():
    text = "FP8 / BF16: 1.000 in the first tenth, 3.000 in the tail, 99% of them below 3.000"
    assert gradient_norms([norms([2.0, 2.0, 1.0, 1.0, 1.0, 3.0, 3.0, 3.0] + [3.0] * 32)], Asked()).text == text
    six = [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, *[3.0] * 54]
    assert gradient_norms([norms(six)], Asked()).text.startswith(
        "FP8 / BF16: 1.500 in the first tenth, 3.000 in the tail"
    )


def test_the_norms_of_all_pairs_that_logged_them_count():
    """A value that is not finite is left out."""
    silent, low, high = both(noisy()), norms([1.0] * 320 + [1.0, math.inf] * 40), norms([1.0] * 320 + [2.0] * 80)
    text = "FP8 / BF16: 1.000 in the first tenth, 2.000 in the tail, 99% of them below 2.000"
    assert gradient_norms([silent, low, high], Asked()).text == text
    assert gradient_norms([silent], Asked()) == Finding("gradient norm", "not logged")


def test_one_in_a_hundred_norms_of_the_tail_may_be_higher():
    """The 99th percentile of 100 values from 1.01 to 2.00 lies just above the 99th."""
    values = [1.0] * 100 + [1.01 + 0.01 * i for i in range(100)]
    text = "FP8 / BF16: 1.000 in the first tenth, 1.505 in the tail, 99% of them below 1.990"
    assert gradient_norms([norms(values)], Asked(tail=0.5)).text == text
