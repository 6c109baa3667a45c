"""Numerics verdicts: limits on both sides, numbers that no row mentions, and records that lack a place."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from fp8parity.checks import RunSpec, checkpoint
from fp8parity.judging import numerics
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band, Rule, Trend
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import Recipe
from fp8parity.recipes.registry import executions, installed
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import load_records
from fp8parity.workload.presets import presets
from sessions import cell, stored

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


@pytest.mark.parametrize(
    ("value", "status"), [(28.0, "pass"), (29.0, "pass"), (27.9, "fail"), (29.1, "fail"), (math.nan, "fail")]
)
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
            f"1 of 2 numbers could not be judged: {NEEDS} fp8parity golden bounds SET --write", ["fprop sqnr @ g 28.5"],
        ),
    ],
)  # fmt: skip
def test_a_red_verdict_counts_and_holds_the_numbers_that_are_wrong(
    judged, rows, values, numbers, status, headline, failing
):
    found = judged(policy(*rows), *values, numbers=numbers)
    assert (found.status, found.headline, [f.brief for f in found.failing]) == (status, headline, failing)
    assert {f.where for f in found.failing} <= {"g", "h", "i"}


@pytest.mark.parametrize(("last", "failing"), [(29.0, []), (29.01, ["fprop sqnr trend @ g 0.51"])])
def test_a_number_may_rise_by_the_slack_of_its_trend(judged, last, failing):
    found = judged(policy(WIDE, trend=(TREND,)), 28.0, 28.5, last)
    assert (found.green, [f.brief for f in found.failing]) == (not failing, failing)


RECORDS = Path(__file__).parents[1] / "golden" / "records"
OPERANDS = [name for name, _ in RECIPES["te-current"].linear]
CELLS = [(recipe, execution) for recipe in RECIPES.values() for execution in executions(recipe)]
SETS = ("epyc.zip", "h100-gate-sixth.zip", "h200-variants-numerics.zip")
CHECKS = ("codes", "dispatch", "places", "defaults", "modes", "checkpoint")


def named(check: str, recipe: Recipe, execution: str) -> set[tuple[str, str]]:
    """The numbers that the policy names for a whole record."""
    row = stored()[1].complete_row(cell(recipe.name, execution), check)
    return set(row.numbers) if row else set()


@pytest.mark.parametrize(("recipe", "execution"), CELLS, ids=lambda value: str(getattr(value, "name", value)))
def test_the_policy_names_what_the_checks_of_each_recipe_measure(recipe, execution):
    """Who changes which operands a recipe quantizes, or how it keeps its weights, must say so in the policy."""
    if recipe.linear.quantized:
        quantized = [name for name, op in recipe.linear if op.quantized]
        assert named("codes", recipe, execution) == set(product(["differing codes", "differing scales"], quantized))
    seen = execution != Execution.NATIVE or recipe.native is None or installed(recipe.native.package)
    spec = RunSpec(recipe, execution, torch.device("cpu"), presets()["micro"].model, presets()["micro"].schedule)
    if seen and checkpoint.stateless(spec) is None:
        assert {where for _, where in named("checkpoint", recipe, execution)} == set(checkpoint.arms(spec))
    kinds = {
        "defaults": {*OPERANDS},
        "places": {*GEMMS},
        "modes": {"before the capture", "replayed"},
        "dispatch": {"forward", "backward"},
    }
    kinds["modes"] |= set() if execution == Execution.FUSED else {"tiny steps"}
    kinds["dispatch"] |= {"linear"} if execution == Execution.NATIVE else set()
    for check, places in kinds.items():
        assert {where for _, where in named(check, recipe, execution)} == places


@cache
def records(check: str) -> list[Measurements]:
    """A record of a check for each form that its numbers have."""
    found = (
        r for name in SETS for r in load_records(RECORDS / name) if isinstance(r, Measurements) and r.check == check
    )
    forms = {tuple(m.place for m in r.values): r.model_copy(update={"partial": False}) for r in found}
    return list(forms.values())


def status(record: Measurements, policy: Policy | None = None) -> tuple[str, str]:
    goldens, own = stored()
    found = numerics.judge(record, policy or own, goldens.numbers)
    return found.status, found.headline


@pytest.mark.parametrize("check", CHECKS)
def test_a_record_without_any_one_of_its_numbers_is_an_error(check):
    assert len(records(check)) >= (3 if check in ("codes", "checkpoint") else 1)
    for record in records(check):
        assert status(record)[0] == "pass"
        for i, gone in enumerate(record.values):
            short = record.model_copy(update={"values": [*record.values[:i], *record.values[i + 1 :]]})
            found, headline = status(short)
            assert found == "error" and headline.startswith(
                f"the record lacks 1 number that golden/numerics or the policy names: {gone.metric}"
            )


def test_a_record_of_an_older_schema_may_lack_a_place():
    [record] = records("defaults")
    assert status(record.model_copy(update={"values": record.values[1:], "partial": True}))[0] == "pass"
