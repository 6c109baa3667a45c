"""Where each cause begins and ends: made-up numbers on both sides of every limit."""

from __future__ import annotations

import math

import pytest
import two_sides
from fp8parity.judging.causes import Part, Seen, accumulator, causes, local, one_direction, unquantized
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Rule
from fp8parity.judging.references.limits import Limits
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from trajectories import PROVENANCE

NOTHING = "this is BF16's SQNR: nothing was quantized"
BF16 = Limits(48.0, 52.0, rule=(48.0, 52.0), why="a made-up row")
INF, NAN = math.inf, math.nan


def seen(metric: str, where: object, value: float, expected: float | None = None, **more: object) -> Seen:
    given = {"low": False, "high": False, "bf16": None, "decibels": False} | more
    return Seen(Measurement(metric=f"fprop {metric}", where=str(where), value=value), expected, **given)  # type: ignore[arg-type]  # one dict


def part(*found: Seen, check: str = "gemm") -> Part:
    return Part("fprop", check, found)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([{"high": True}, {}], NOTHING),
        ([{"high": True}, {}, {}], None),
        ([{"high": True}, {"low": True}], None),
        ([{"high": True}, {"high": True, "bf16": None}], None),
        ([{"high": True, "value": 52.5}], None),
        ([{"high": True, "expected": 49.0}], None),
        ([{"high": True, "expected": None}], NOTHING),
        ([{}], None),
    ],
)
def test_half_of_the_sqnrs_lie_in_bf16s_limits_where_the_recipes_do_not(found, text):
    numbers = [{"value": 50.0, "expected": 28.0, "bf16": BF16, "decibels": True} | given for given in found]
    assert unquantized(part(*(seen("sqnr", i, **given) for i, given in enumerate(numbers)))) == text


@pytest.mark.parametrize(
    ("drops", "text"),
    [
        ([(0.0, 3.5, 0.0)], "its worst row lost up to 4 dB, the whole 0.0 dB: some rows (tokens) are wrong"),
        ([(1.0, 4.5, 1.0)], "its worst row lost up to 4 dB, the whole 1.0 dB: some rows (tokens) are wrong"),
        (
            [(1.0, 1.0, 4.5)],
            "its worst column lost up to 4 dB, the whole 1.0 dB: some columns (output features) are wrong",
        ),
        ([(1.0, 3.5, 0.0)], None),
        ([(0.0, 3.5, 1.0)], None),
        ([(1.0, 4.0, 0.0)], None),
        ([(0.0, 4.0, 1.0)], None),
        ([(0.0, 9.0, 0.0), (0.0, 0.0, 0.0)], None),
        (
            [(0.0, 9.0, 0.0), (2.0, 8.0, 0.0), (0.0,) * 3],
            "its worst row lost up to 9 dB, the whole 1.0 dB: some rows (tokens) are wrong",
        ),
    ],
)
def test_rows_are_wrong_if_in_most_places_they_lost_over_3_db_more_than_the_rest(drops, text):
    names = ("sqnr", "worst row sqnr", "worst column sqnr")
    found = [
        seen(name, i, 32.0 - drop, 32.0)
        for i, place in enumerate(drops)
        for name, drop in zip(names, place, strict=True)
    ]
    assert local(part(*found)) == text


def test_places_without_a_finite_and_a_measured_number_are_left_out():
    found = [
        seen("gain", i, value, expected)
        for i, (value, expected) in enumerate([(1.0, 2.0), (3.0, None), (NAN, 4.0), (INF, 5.0)])
    ]
    assert list(part(*found).pairs("gain")) == [((1.0, 2.0),)]


def gains(shifts, noise):
    """Gains and SQNRs of results with these shifts. Without its gain each result has ``noise`` dB more than the expected 28."""
    for i, (shift, more) in enumerate(zip(shifts, noise, strict=True)):
        power = 10 ** (-(28.0 + more) / 10) * (1 + shift) ** 2 + shift**2
        yield seen("gain", i, shift, 0.0)
        yield seen("sqnr", i, -10 * math.log10(power), 28.0)


@pytest.mark.parametrize(
    ("shifts", "noise", "first"),
    [
        ([0.05] * 3, [0.0] * 3, "a gain of 1.05 for all operands"),
        ([0.05] * 2, [0.0] * 2, None),
        ([0.05, 0.05, 0.05, 0.0], [0.0] * 4, "results are too large by 0.00% to 5.00%"),
        ([-0.05, -0.05, -0.05, 0.0], [0.0] * 4, "results are too small by 0.00% to 5.00%"),
        ([0.05, 0.05, 0.0001, 0.0001], [0.0] * 4, None),
        ([0.05, 0.05, 0.05, -0.05], [0.0] * 4, None),
        ([0.05] * 3, [0.4] * 3, "a gain of 1.05 for all operands"),
        ([0.05] * 3, [-0.4] * 3, "a gain of 1.05 for all operands"),
        ([0.05] * 3, [0.6] * 3, None),
        ([0.05] * 3, [-0.6] * 3, None),
        ([0.05] * 4, [0.0, 0.0, 2.0, 2.0], None),
        ([0.05] * 4, [0.0, 0.0, 0.0, 2.0], "a gain of 1.05 for all operands"),
    ],
)
def test_a_gain_is_a_cause_if_all_but_one_place_have_it_and_most_have_the_same_noise(shifts, noise, first):
    text = one_direction(part(*gains(shifts, noise)))
    assert (text and text.partition(",")[0]) == first


@pytest.mark.parametrize("shifts", [[-0.01, 0.0, 0.01], [-0.01, -0.01, 0.01, 0.01]])
def test_shifts_to_both_sides_of_zero_have_no_direction(shifts):
    """Their median is 0, or almost."""
    assert one_direction(part(*gains(shifts, [0.0] * len(shifts)))) is None


GROWS, SAME = (
    "the bias grows with K ({}): a short accumulator",
    "the bias is the same for every K ({}): a scale, not an accumulator",
)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-0.01, -0.02), GROWS.format("-1.00% at 0 and -2.00% at 1")),
        ((-0.5, -0.75), GROWS.format("-50.00% at 0 and -75.00% at 1")),
        ((-0.01, -0.0105, -0.02), GROWS.format("-1.00% at 0 and -2.00% at 2")),
        ((-0.01, -0.01, -0.02), None),
        ((-0.01,), None),
        ((0.0, 0.0), None),
        ((0.01, 0.01), SAME.format("+1.00% at 0 and +1.00% at 1")),
        ((10.0, 10.0, 11.0), SAME.format("+1000.00% at 0 and +1100.00% at 2")),
        ((0.01, 0.015), None),
        ((-0.01, -0.02, -INF), None),
        ((-0.01, -0.02, NAN), None),
    ],
)
def test_a_bias_grows_or_is_the_same_over_two_or_more_finite_values(values, text):
    found = [seen("bias", i, value, low=value < 0, high=value >= 0) for i, value in enumerate(values)]
    assert accumulator(part(*found, check="accumulation")) == text


Ends = tuple[float, float]


def told(*numbers: tuple[str, str, float, Ends | None], policy: Policy = two_sides.POLICY) -> list[str]:
    """The causes of numbers, each a metric, a place, a value and its limits. All were measured as 28."""
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
    found = [
        (
            Measurement(metric=metric, where=where, value=value),
            Limits(*ends, ends, "a made-up row", measured=28.0) if ends else None,
        )
        for metric, where, value, ends in numbers
    ]
    record = Measurements(cell=cell, check="gemm", values=[m for m, _ in found], provenance=PROVENANCE, session="s")
    return causes(record, found, policy, MeasuredNumbers())


@pytest.mark.parametrize(
    ("others", "text"),
    [
        ([(28.5, (28.0, 29.0))], [f"fprop: {NOTHING}"]),
        ([(28.5, (28.0, 29.0))] * 2, []),
        ([(50.0, (28.0, 50.0)), (28.5, (28.0, 29.0))], []),
        ([(28.0, (28.0, 29.0))], [f"fprop: {NOTHING}"]),
        ([(27.5, (28.0, 29.0))], []),
    ],
)
def test_of_the_sqnrs_one_on_an_end_of_its_limits_is_inside(others, text):
    rule = Rule(check=("gemm",), metric=("fprop sqnr",), recipe=("bf16",), low=48.0, high=52.0, why="a made-up row")
    numbers = [("fprop sqnr", str(i), value, ends) for i, (value, ends) in enumerate([(50.0, (28.0, 29.0)), *others])]
    assert told(*numbers, policy=two_sides.POLICY.model_copy(update={"rule": (rule,)})) == text


@pytest.mark.parametrize("gemm", ["fprop", "dgrad"])
@pytest.mark.parametrize(
    ("ends", "outside"),
    [((0.0, 99.0), False), ((10.0, 99.0), False), ((0.0, 10.0), False), ((10.5, 99.0), True), ((0.0, 9.5), True)],
)
def test_a_gemm_whose_numbers_are_inside_their_limits_has_no_cause(gemm, ends, outside):
    """Its rows lost 18 dB, and its limits may allow that. Another GEMM is outside, and a metric without limits is nowhere."""
    wide = (0.0, 99.0)
    own = [
        (f"{gemm} sqnr", "a", 28.0, wide),
        (f"{gemm} worst row sqnr", "a", 10.0, ends),
        (f"{gemm} worst column sqnr", "a", 28.0, wide),
    ]
    text = f"{gemm}: its worst row lost up to 18 dB, the whole 0.0 dB: some rows (tokens) are wrong"
    assert told(*own, ("wgrad sqnr", "a", 100.0, wide), ("other", "a", 100.0, None)) == ([text] if outside else [])
    assert told(*own, ("other", "a", 100.0, None)) == ([text] if outside else [])
