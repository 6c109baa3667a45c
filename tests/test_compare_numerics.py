"""Numerics checks of two record sets: a change is exact, and held against the width of its limits."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import pytest
import two_sides
from fp8parity.judging.compare import Comparison, compare
from fp8parity.judging.policy.known_failures import Expected, KnownFailure, KnownFailures
from fp8parity.judging.policy.rows import Band, Rule
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from sessions import GOLDEN, stored
from two_sides import POLICY, WHY, change, compared

TODAY = datetime.date(2026, 11, 23)


@pytest.fixture
def measured(trajectory):
    def make(version, sqnr=28.5, bias=1.0, recipe="te-current", metric="fprop sqnr"):
        execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
        cell = Cell(model="tiny", recipe=recipe, execution=execution, corpus="topics")
        values = [Measurement(metric=metric, where="g", value=sqnr), Measurement(metric="bias", where="g", value=bias)]
        made = two_sides.provenance(trajectory, version)
        return Measurements(cell=cell, check="gemm", values=values, provenance=made, session=version)

    return make


@pytest.mark.parametrize(
    ("old", "new", "moved", "effect", "code"),
    [
        ({}, {"sqnr": 28.2}, "noise", "none", 0),
        ({"sqnr": 28.01}, {"sqnr": 27.99}, "recipe changed", "regression", 1),
        ({}, {"sqnr": 29.1}, "recipe changed", "regression", 1),
        ({"sqnr": 28.9}, {"sqnr": 28.1}, "recipe changed", "regression", 1),
        ({"sqnr": 27.0}, {"sqnr": 28.5}, "recipe changed", "gain", 0),
        ({"bias": 0.2}, {"bias": 1.9}, "recipe changed", "regression", 1),
        ({}, {"sqnr": math.nan}, "recipe changed", "regression", 1),
        ({"metric": "odd"}, {"metric": "odd", "sqnr": 28.4}, "cannot say", "unknown", 2),
        ({"sqnr": math.nan}, {"sqnr": math.nan}, "unchanged", "none", 0),
        ({"sqnr": 27.0}, {"sqnr": 28.5, "bias": 2.1}, "recipe changed", "regression", 1),
    ],
)
def test_numerics_by_the_share_of_their_band(measured, old, new, moved, effect, code):
    found = compared([measured("2.12.0", **old)], [measured("2.13.0", **new)])
    assert (change(found, kind="gemm").moved, change(found, kind="gemm").effect, found.code) == (moved, effect, code)


@pytest.mark.parametrize(("old", "new", "effect"), [(0.1, 0.4, "regression"), (0.4, 0.1, "gain")])
def test_of_a_metric_without_a_row_a_lower_number_is_better(measured, old, new, effect):
    """Both numbers are inside their limits, and the change is larger than the half-width of 0.25."""
    narrow = Rule(check=("gemm",), metric=("rms",), low=0, high=0.5, why=WHY)
    sides = [[measured(version, value, metric="rms")] for version, value in (("2.12.0", old), ("2.13.0", new))]
    found = compared(sides[0], sides[1], POLICY.model_copy(update={"rule": (*POLICY.rule, narrow)}))
    assert change(found, kind="gemm").effect == effect


@pytest.mark.parametrize(("new", "effect"), [(28.45, "none"), (28.3, "regression")])
def test_a_measured_number_narrows_the_limits(measured, new, effect):
    """The rule alone allows 28 to 29; the band around the measured 28.5 allows 28.4 to 28.6."""
    old = measured("2.12.0")
    numbers = MeasuredNumbers({"shared": {NumberKey.of(old.cell, "gemm", old.values[0]): Number(28.5, "made")}})
    policy = POLICY.model_copy(update={"band": (Band(check=("gemm",), metric=("fprop sqnr",), band=0.1, why=WHY),)})
    found = compare([old], [measured("2.13.0", new)], Goldens(numbers=numbers), policy)
    assert change(found, kind="gemm").effect == effect


@pytest.mark.parametrize(
    ("new", "days", "high", "result", "text"),
    [
        (0.33, 1, 0.0, ("noise", "none", 0), "+0.02 (rms @ g, a known failure)"),
        (0.31, 1, 0.0, ("unchanged", "none", 0), "+0 (rms @ g)"),
        (0.52, 1, 0.0, ("recipe changed", "regression", 1), "+0.21 (rms @ g)"),
        (0.33, 0, 0.0, ("recipe changed", "regression", 1), "+0.02 (rms @ g)"),
    ],
)
def test_a_number_that_is_known_to_be_wrong_moves_within_its_range(measured, new, days, high, result, text):
    """A race of Inductor gave 0.317 and 0.314 on two starts of one H200, where 0 is right, and compare blamed torchao for it."""
    rule = Rule(check=("gemm",), metric=("rms",), low=0, high=high, why=WHY)
    race = KnownFailure(
        recipe=("te-current",),
        check=("gemm",),
        status="fail",
        number=(Expected(metric="rms", where=("g",), low=0.2, high=0.5),),
        link="https://example.org/1",
        expires=TODAY + datetime.timedelta(days=days),
        why=WHY,
    )
    known = KnownFailures(path=Path("known_failures.toml"), entries=(race,), today=TODAY)
    policy = POLICY.model_copy(update={"rule": (*POLICY.rule, rule), "known": known})
    found = compared([measured("2.12.0", 0.31, metric="rms")], [measured("2.13.0", new, metric="rms")], policy)
    made = change(found, kind="gemm")
    assert (made.moved, made.effect, found.code) == result
    assert made.recipe and made.recipe.text == text


@pytest.mark.parametrize(("split", "moved"), [(False, "noise"), (True, "recipe changed")])
def test_one_known_failure_names_both_numbers(measured, split, moved):
    """A number that went from the range of one known failure into that of another changed."""
    rule = Rule(check=("gemm",), metric=("rms",), low=0, high=0, why=WHY)
    ranges = [(0.2, 0.4), (0.4, 0.6)] if split else [(0.2, 0.6)]
    entries = tuple(
        KnownFailure(
            recipe=("te-current",),
            check=("gemm",),
            status="fail",
            number=(Expected(metric="rms", where=("g",), low=low, high=high),),
            link="https://example.org/1",
            expires=TODAY + datetime.timedelta(days=1),
            why=WHY,
            written=i,
        )
        for i, (low, high) in enumerate(ranges, 1)
    )
    known = KnownFailures(path=Path("known_failures.toml"), entries=entries, today=TODAY)
    policy = POLICY.model_copy(update={"rule": (*POLICY.rule, rule), "known": known})
    found = compared([measured("2.12.0", 0.31, metric="rms")], [measured("2.13.0", 0.52, metric="rms")], policy)
    assert change(found, kind="gemm").moved == moved


CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
BAND = Band(check=("accumulation",), metric=("fprop bias",), band=0.002, by="gpu", why=WHY)
WIDE = Rule(check=("accumulation",), metric=("fprop bias",), low=-0.45, high=0.0002, why=WHY)
GIVES = {"H100": -0.053, "H200": -0.038}
"""What each GPU model gives. A B200 was not measured."""


def bias(value: float) -> Measurement:
    return Measurement(metric="fprop bias", where="K=32768", value=value)


@pytest.fixture
def moved(trajectory):
    """Compares the bias of one device with that of another."""
    key = NumberKey.of(CELL, "accumulation", bias(0))
    numbers = MeasuredNumbers({gpu.lower(): {key: Number(value, "made")} for gpu, value in GIVES.items()})

    def made(old: tuple[str, float], new: tuple[str, float], rules: tuple[Rule, ...] = (WIDE,)) -> Comparison:
        held = POLICY.model_copy(update={"rule": rules, "band": (BAND,)})
        sides = [
            Measurements(
                cell=CELL, check="accumulation", values=[bias(value)], session=version,
                provenance=two_sides.provenance(trajectory, version, device, [9, 0]),
            )
            for version, (device, value) in zip(("2.12.0", "2.13.0"), (old, new), strict=True)
        ]  # fmt: skip
        return compare(sides[:1], sides[1:], Goldens(numbers=numbers), held)

    return made


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        (("H100", -0.0531), ("H200", -0.0379), ("noise", "none", 0)),
        (("H100", -0.053), ("H200", -0.053), ("recipe changed", "regression", 1)),
        (("H100", -0.053), ("H100", -0.038), ("recipe changed", "regression", 1)),
        (("H100", -0.053), ("B200", -0.02), ("noise", "none", 0)),
        (("H100", -0.053), ("B200", -0.5), ("recipe changed", "regression", 1)),
    ],
)  # fmt: skip
def test_each_side_is_held_to_its_own_gpu_model(moved, old, new, result):
    """An unmeasured GPU is judged by the rule alone."""
    found = moved(old, new)
    made = change(found, kind="accumulation")
    assert (made.moved, made.effect, found.code) == result


def test_a_gpu_model_of_which_nothing_is_known_cannot_be_judged(moved):
    made = change(moved(("H100", -0.053), ("B200", -0.02), rules=()), kind="accumulation")
    assert (made.moved, made.effect) == ("cannot say", "unknown")


@pytest.mark.slow
def test_gates_of_an_h100_and_an_h200_do_not_blame_a_recipe():
    """Both are sound, and compare said that three recipes were worse."""
    old, new = (sets.load([GOLDEN / "records" / name]) for name in ("h100-gate-sixth.zip", "h200-gate-fifth.zip"))
    found = compare(old, new, *stored())
    assert (found.code, found.having("regression")) == (0, [])
