"""Numerics checks of two record sets: a change is exact, and is held against the width of its limits."""

from __future__ import annotations

import math

import pytest
import two_sides
from fp8parity.judging.compare import compare
from fp8parity.judging.goldens import Goldens
from fp8parity.judging.measured_numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.number_rows import Band, Rule
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from two_sides import POLICY, WHY, change, compared


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
        ({}, {"sqnr": 28.4}, "noise", "none", 0),
        ({}, {"sqnr": 28.2}, "recipe moved", "none", 0),
        ({}, {"sqnr": 27.9}, "recipe moved", "regression", 1),
        ({}, {"sqnr": 29.1}, "recipe moved", "regression", 1),
        ({"sqnr": 28.9}, {"sqnr": 28.1}, "recipe moved", "regression", 1),
        ({"sqnr": 28.1}, {"sqnr": 28.9}, "recipe moved", "gain", 0),
        ({"sqnr": 27.0}, {"sqnr": 28.5}, "recipe moved", "gain", 0),
        ({"bias": 0.2}, {"bias": 1.9}, "recipe moved", "regression", 1),
        ({"bias": 1.9}, {"bias": 0.2}, "recipe moved", "gain", 0),
        ({}, {"sqnr": math.nan}, "recipe moved", "regression", 1),
        ({"metric": "odd"}, {"metric": "odd", "sqnr": 28.4}, "cannot say", "unknown", 2),
        ({}, {}, "unchanged", "none", 0),
    ],
)
def test_numerics_by_the_share_of_their_band(measured, old, new, moved, effect, code):
    found = compared([measured("2.12.0", **old)], [measured("2.13.0", **new)])
    assert (change(found, kind="gemm").moved, change(found, kind="gemm").effect, found.code) == (moved, effect, code)


@pytest.mark.parametrize(("new", "effect"), [(28.45, "none"), (28.3, "regression")])
def test_a_measured_number_narrows_the_limits(measured, new, effect):
    """The rule alone allows 28 to 29; the band around the measured 28.5 allows 28.4 to 28.6."""
    old = measured("2.12.0")
    numbers = MeasuredNumbers({"shared": {NumberKey.of(old.cell, "gemm", old.values[0]): Number(28.5, "made")}})
    policy = POLICY.model_copy(update={"band": (Band(check="gemm", metric=("fprop sqnr",), band=0.1, why=WHY),)})
    found = compare([old], [measured("2.13.0", new)], Goldens(numbers=numbers), policy)
    assert change(found, kind="gemm").effect == effect


def test_numerics_of_bf16_tell_the_framework(measured):
    old = [measured("2.12.0", recipe=r) for r in ("bf16", "te-current")]
    new = [measured("2.13.0", 28.2, recipe=r) for r in ("bf16", "te-current")]
    found = compared(old, new)
    assert change(found, "bf16", "gemm").moved == "framework moved"
    assert change(found, kind="gemm").moved == "both moved"
    assert "fprop sqnr @ g: 28.5 -> 28.2 (-0.3, band +-0.5)" in change(found, kind="gemm").notes


@pytest.mark.parametrize(("places", "last"), [(6, "fprop sqnr @ 5: 28.5 -> 28.2 (-0.3, band +-0.5)"), (8, "and 2 more")])
def test_a_change_names_six_numbers_and_counts_the_others(measured, places, last):
    old, new = (
        r.model_copy(update={"values": [Measurement(metric="fprop sqnr", where=str(i), value=value) for i in range(places)]})
        for r, value in ((measured("2.12.0"), 28.5), (measured("2.13.0"), 28.2))
    )
    notes = change(compared([old], [new]), kind="gemm").notes
    assert (len(notes), notes[-1]) == (min(places, 7), last)


def test_a_metric_that_vanished_is_missing(measured):
    new = measured("2.13.0")
    found = compared([measured("2.12.0")], [new.model_copy(update={"values": new.values[:1]})])
    assert [m.text for m in found.missing] == ["te-current-tiny-emulated gemm: bias @ g (in NEW)"]
    assert found.code == 2


def test_a_number_that_must_be_exact_has_no_width(measured):
    exact = Rule(check="gemm", metric=("fprop sqnr",), low=28.5, high=28.5, why="a made-up row")
    policy = POLICY.model_copy(update={"rule": (*POLICY.rule, exact)})
    found = compare([measured("2.12.0")], [measured("2.13.0", 28.6)], Goldens(), policy)
    assert (change(found, kind="gemm").effect, found.code) == ("regression", 1)
