"""Numerics verdicts from made-up records: limits on both sides, numbers that nothing speaks of, and checks that nothing can judge."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fp8parity.judging import numerics
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band, Rule, Trend
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements

CELL = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED, corpus="topics")
RULE = Rule(
    check=("gemm",),
    metric=("fprop sqnr",),
    recipe=("te-current",),
    where=("g",),
    low=28.0,
    high=29.0,
    why="a made-up row",
)
WIDE = Rule(check=("gemm",), low=0, high=99, why="a made-up row")
BAND = Band(check=("gemm",), metric=("fprop sqnr",), band=0.5, why="a made-up band")
STORED = MeasuredNumbers(
    {"shared": {NumberKey("gemm", "fprop sqnr", "g", "nano", "te-current", CELL.execution): Number(28.5, "set1")}}
)
[(KEY, KNOWN)] = STORED.tables["shared"].items()
THREE = MeasuredNumbers({"shared": {KEY._replace(where=where): KNOWN for where in "ghi"}})
TREND = Trend(check=("gemm",), slack=0.5, why="a made-up trend")
OTHER = Measurement(metric="bias", where="h", value=1.0)
NEEDS = "they have no rule and no measured number; run the check on a machine that you trust, then store its numbers:"
BOTH_WAYS = pytest.mark.parametrize(
    ("value", "status"),
    [
        (28.4, "pass"), (28.0, "pass"), (29.0, "pass"), (27.9, "fail"), (29.1, "fail"), (math.inf, "fail"), (-math.inf, "fail"),
        (math.nan, "fail"),
    ],
)  # fmt: skip


@pytest.fixture
def judged(trajectory):
    def make(policy, *values, numbers=MeasuredNumbers(), ranks=1, **changes):  # noqa: B008 - frozen
        rows = [
            v if isinstance(v, Measurement) else Measurement(metric="fprop sqnr", where="g", value=v) for v in values
        ]
        cell = CELL.model_copy(update={"ranks": ranks})
        record = Measurements(
            cell=cell, check="gemm", values=rows, provenance=trajectory().provenance, session="s", **changes
        )
        return numerics.judge(record, policy, numbers)

    return make


def policy(*rows, **others) -> Policy:
    rules, bands = tuple(r for r in rows if isinstance(r, Rule)), tuple(r for r in rows if isinstance(r, Band))
    return Policy(path=Path("policy.toml"), rule=rules, band=bands, **others)


@BOTH_WAYS
def test_bounds_are_two_sided(judged, value, status):
    assert judged(policy(RULE), value).status == status


@pytest.mark.parametrize(
    ("ranks", "value", "status", "headline"),
    [
        (1, 28.4, "error", "the record lacks 1 number that golden/numerics or the policy names: fprop sqnr @ h"),
        (1, 27.9, "fail", "1 of 1 numbers are outside their bounds"),
        (2, 28.4, "pass", "1 numbers inside their bounds"),
        (2, 27.9, "pass", "1 numbers inside their bounds"),
    ],
)
def test_measured_numbers_are_of_one_rank(judged, ranks, value, status, headline):
    """Several ranks lack no number of theirs, and only rules judge them."""
    both = MeasuredNumbers({"shared": {KEY: KNOWN, KEY._replace(where="h"): KNOWN}})
    found = judged(policy(WIDE, BAND), value, numbers=both, ranks=ranks)
    assert (found.status, found.headline) == (status, headline)


@pytest.mark.parametrize(("partial", "status"), [(False, "error"), (True, "pass")])
def test_only_a_partial_record_may_lack_a_number(judged, partial, status):
    """Its check may not have measured it yet."""
    always = RULE.model_copy(update={"metric": ("fprop gain",), "always": True})
    found = judged(policy(RULE, always), 28.5, partial=partial)
    assert (found.status, ("fprop gain", "the record lacks it") in found.lines) == (status, status == "error")


@pytest.mark.parametrize(
    ("rows", "values", "numbers", "status", "headline", "failing"),
    [
        ([RULE], [], STORED, "error", "the check measured nothing", []),
        ([RULE], [OTHER, 28.5, 27.9], STORED, "fail", "2 of 3 numbers are outside their bounds", ["fprop sqnr @ g 27.9", "bias @ h 1"]),
        ([RULE], [28.5, OTHER], STORED, "error", "no row of the policy mentions 1 of 2 numbers", ["bias @ h 1"]),
        (
            [BAND], [28.5], THREE, "error",
            "the record lacks 2 numbers that golden/numerics or the policy names: fprop sqnr @ h, fprop sqnr @ i",
            ["fprop sqnr @ h nan", "fprop sqnr @ i nan"],
        ),
        (
            [BAND, RULE.model_copy(update={"metric": ("bias",), "where": (), "low": 0.0})], [28.5, OTHER], MeasuredNumbers(), "no-golden",
            f"1 of 2 numbers could not be judged: {NEEDS} fp8parity bounds SET --write", ["fprop sqnr @ g 28.5"],
        ),
    ],
)  # fmt: skip
def test_a_red_verdict_counts_and_holds_the_numbers_that_are_wrong(
    judged, rows, values, numbers, status, headline, failing
):
    found = judged(policy(*rows), *values, numbers=numbers)
    assert (found.status, found.headline, [f.text for f in found.failing]) == (status, headline, failing)
    assert {f.where for f in found.failing} <= {"g", "h", "i"}


@pytest.mark.parametrize(("last", "failing"), [(29.0, []), (29.01, ["fprop sqnr trend @ g 0.51"])])
def test_a_number_may_rise_by_the_slack_of_its_trend(judged, last, failing):
    found = judged(policy(WIDE, trend=(TREND,)), 28.0, 28.5, last)
    assert (found.green, [f.text for f in found.failing]) == (not failing, failing)
