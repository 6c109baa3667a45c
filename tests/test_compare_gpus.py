"""Numbers that depend on the GPU model (a band with by = "gpu"), in two sets of two GPU models: each side has the limits of its own."""

from __future__ import annotations

import datetime
import math

import pytest
import two_sides
from fp8parity.judging import policy, references
from fp8parity.judging.compare import Comparison, compare
from fp8parity.judging.policy.rows import Band, Rule
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from sessions import GOLDEN
from two_sides import POLICY, WHY, change

CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
BAND = Band(check=("accumulation",), metric=("fprop bias",), band=0.002, by="gpu", why=WHY)
WIDE = Rule(check=("accumulation",), metric=("fprop bias",), low=-0.45, high=0.0002, why=WHY)
GIVES = {"H100": -0.053, "H200": -0.038}
"""What each GPU model gives. Nobody has measured a B200."""


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
        (("H100", -0.053), ("H200", -0.038), ("noise", "none", 0)),
        (("H200", -0.038), ("H100", -0.053), ("noise", "none", 0)),
        (("H100", -0.0531), ("H200", -0.0379), ("noise", "none", 0)),
        (("H100", -0.053), ("H200", -0.037), ("recipe moved", "none", 0)),
        (("H100", -0.053), ("H200", -0.053), ("recipe moved", "regression", 1)),
        (("H200", -0.038), ("H100", -0.038), ("recipe moved", "regression", 1)),
        (("H100", -0.053), ("H200", -0.053 - (-0.038 - -0.053)), ("recipe moved", "regression", 1)),
        (("H100", -0.038), ("H200", -0.038), ("recipe moved", "gain", 0)),
        (("H100", math.nan), ("H200", math.nan), ("unchanged", "none", 0)),
        (("H100", -0.053), ("H200", math.nan), ("recipe moved", "regression", 1)),
        (("H100", -0.053), ("H100", -0.038), ("recipe moved", "regression", 1)),
        (("H100", -0.053), ("B200", -0.053), ("unchanged", "none", 0)),
        (("H100", -0.053), ("B200", -0.02), ("noise", "none", 0)),
        (("B200", -0.02), ("H100", -0.053), ("noise", "none", 0)),
        (("H100", -0.053), ("B200", -0.5), ("recipe moved", "regression", 1)),
    ],
)  # fmt: skip
def test_each_side_is_held_to_its_own_gpu_model(moved, old, new, result):
    """Of a GPU that nobody has measured, the rule alone speaks."""
    found = moved(old, new)
    made = change(found, kind="accumulation")
    assert (made.moved, made.effect, found.code) == result


def test_a_gpu_model_of_which_nothing_is_known_cannot_be_judged(moved):
    made = change(moved(("H100", -0.053), ("B200", -0.02), rules=()), kind="accumulation")
    assert (made.moved, made.effect) == ("cannot say", "unknown")


def test_the_difference_between_two_gpu_models_is_told(moved):
    made = change(moved(("H100", -0.053), ("H200", -0.053)), kind="accumulation")
    assert made.notes == [
        "fprop bias @ K=32768: -0.053 -> -0.053 (-0.015 beside +0.015 between the GPU models, band +-0.002)"
    ]
    assert (made.old, made.new, made.margin) == ("-0.053", "-0.053", "+-0.002")


@pytest.mark.parametrize("order", [1, -1])
def test_gates_of_an_h100_and_an_h200_do_not_blame_a_recipe(order):
    """Both are sound, and compare said that three recipes were worse, in either order."""
    old, new = [sets.load([GOLDEN / "records" / name]) for name in ("h100-gate-sixth.zip", "h200-gate-fifth.zip")][
        ::order
    ]
    found = compare(old, new, references.load(GOLDEN), policy.load(GOLDEN, datetime.date(2026, 11, 23)))
    assert (found.code, found.having("regression")) == (0, [])
