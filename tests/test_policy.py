"""The policy: which rows judge a number, what a row may hold, and how faults of the file are named."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sessions
from fp8parity.judging import numerics
from fp8parity.judging.policy import GemmRow, GoldenRow, LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, MetricRow, Rule
from fp8parity.judging.policy.selectors import Alike, inherited
from fp8parity.judging.references.limits import Limits, limits
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from narrowed import some
from rows import row

WHY = "a made-up row"
CELL = Cell(model="nano", recipe="te-current", execution=Execution.NATIVE)
NUMBER = Measurement(metric="fprop sqnr", where="gaussian", value=28.5)


def rule(low: float, high: float, **selects: object) -> Rule:
    return Rule.model_validate({"check": "gemm", "low": low, "high": high, "why": WHY, **selects})


def band(width: float, **selects: object) -> Band:
    return Band.model_validate({"check": "gemm", "band": width, "why": WHY, **selects})


def made(*rows: Rule | Band) -> Policy:
    rules, bands = tuple(r for r in rows if isinstance(r, Rule)), tuple(r for r in rows if isinstance(r, Band))
    return Policy(path=Path("policy.toml"), rule=rules, band=bands)


def stored(value: float, execution: Execution = Execution.NATIVE, table: str = "shared") -> MeasuredNumbers:
    key = NumberKey.of(CELL, "gemm", NUMBER)._replace(execution=execution)
    return MeasuredNumbers({table: {key: Number(value, "set1")}})


def found(rows: Policy, numbers: MeasuredNumbers | None = None, cell: Cell = CELL) -> Limits | None:
    return limits(rows, numbers or MeasuredNumbers(), cell, "gemm", NUMBER, "NVIDIA H200")


class TestSelection:
    def test_last_rule_and_band_win(self):
        both = made(rule(0, 99), rule(28, 29, recipe="te-current"), band(2, recipe="te-current"), band(0.5))
        assert some(both.rule_for(CELL, "gemm", NUMBER)).low == 28
        assert some(both.rule_for(CELL.model_copy(update={"recipe": "x"}), "gemm", NUMBER)).low == 0
        assert some(both.band_for(CELL, "gemm", NUMBER)).band == 0.5

    @pytest.mark.parametrize(
        ("table", "kind"), [("loss", LossRow), ("golden", GoldenRow), ("speed", SpeedRow), ("gemm", GemmRow)]
    )
    def test_last_row_of_a_table_wins(self, table, kind):
        narrow, wide = row(kind, model="nano"), row(kind)

        def chosen(*rows):
            return getattr(Policy.model_validate({"path": Path("p"), table: rows}), f"{table}_row")(CELL)

        assert chosen(wide, narrow) is narrow and chosen(narrow, wide) is wide
        with pytest.raises(ValueError, match=rf"^p: no \[\[{table}\]\] row selects te-current-nano-native"):
            chosen(row(kind, model="other"))

    @pytest.mark.parametrize(
        "selects",
        [
            {"recipe": ["te-block", "te-mxfp8"]}, {"model": "tiny"}, {"execution": "emulated"}, {"corpus": "text:x"},
            {"metric": "dgrad sqnr"}, {"where": "zero-row"}, {"check": "large"},
        ],
    )  # fmt: skip
    def test_row_of_another_selection_does_not_apply(self, selects):
        assert made(rule(0, 1, **selects), band(1, **selects)).number_rows(CELL, "gemm", NUMBER) == (None, None)

    def test_row_of_a_base_selects_the_recipes_that_are_alike(self):
        alike = (Alike(recipe=("b", "c"), base="a", why=WHY), Alike(recipe=("z",), base="x", why=WHY))
        rows = [row(LossRow, recipe=names) for names in (("a",), ("a", "c"), ("d",), ())]
        assert [r.recipe for r in inherited(rows, alike)] == [("a", "b", "c"), ("a", "c", "b"), ("d",), ()]

    def test_metric_has_its_row(self):
        metric = MetricRow(name=("fprop sqnr", "dgrad sqnr"), better="higher", unit="dB")
        rows = Policy(path=Path("p"), metric=(metric,))
        assert rows.metric_row("dgrad sqnr") is metric and rows.metric_row("bias") is None
        assert metric.shown is False

    def test_rules_that_always_apply_require_their_metrics(self):
        rules = (
            rule(0, 1, metric=("a", "b"), always=True),
            rule(0, 1, metric=("c",), always=True, recipe="te-current"),
            rule(0, 1, metric=("d",)),
            rule(0, 1, metric=("e",), always=True, check="other"),
            rule(0, 1, metric=("f",), always=True, recipe="te-block"),
        )
        assert made(*rules).required(CELL, "gemm") == {"a", "b", "c"}


class TestLimits:
    @pytest.mark.parametrize(
        ("rows", "number", "expected"),
        [
            ((rule(28, 29),), None, (28, 29, None)),
            ((rule(28, 29), band(0.25)), 28.5, (28.25, 28.75, None)),
            ((rule(28, 29), band(0.25)), 28.9, (28.65, 29, None)),
            ((rule(28, 29), band(0.25)), 30, (29.75, 29, None)),  # allows nothing
            ((rule(28, 29), band(0.25)), None, (28, 29, "")),
            ((band(0.25),), 28.5, (28.25, 28.75, None)),
            ((band(0.25),), None, (-math.inf, math.inf, "")),
        ],
    )
    def test_limits_are_the_intersection_of_rule_and_band(self, rows, number, expected):
        range_ = some(found(made(*rows), number and stored(number)))
        assert (range_.low, range_.high, range_.missing) == pytest.approx(expected)

    def test_limits_without_a_row_are_none(self):
        assert found(made()) is None

    def test_ratio_is_1_at_either_edge(self):
        range_ = some(found(made(rule(28, 29))))
        assert [range_.ratio(v) for v in (28, 28.5, 29, 30)] == [1, 0, 1, 3]
        assert not range_.allows(math.nan)

    @pytest.mark.parametrize("execution", [Execution.NATIVE, Execution.EMULATED])
    @pytest.mark.parametrize("asked", [Execution.NATIVE, Execution.EMULATED, Execution.FUSED])
    def test_shared_number_stands_in_for_another_execution(self, execution, asked):
        cell = CELL.model_copy(update={"execution": asked})
        assert some(found(made(band(0.25)), stored(28.5, execution), cell)).low == 28.25

    def test_number_of_the_execution_comes_first(self):
        own, other = stored(20.0, Execution.FUSED).tables["shared"], stored(28.5).tables["shared"]
        cell = CELL.model_copy(update={"execution": Execution.FUSED})
        assert some(found(made(band(0.25)), MeasuredNumbers({"shared": {**other, **own}}), cell)).low == 19.75

    @pytest.mark.parametrize(
        ("table", "execution", "missing"),
        [
            ("nvidia-h200", Execution.NATIVE, None),
            ("nvidia-h200", Execution.FUSED, "NVIDIA H200"),
            ("nvidia-h100", Execution.NATIVE, "NVIDIA H200"),
            ("shared", Execution.NATIVE, "NVIDIA H200"),
        ],
    )
    def test_number_of_a_gpu_counts_for_it_and_its_execution_alone(self, table, execution, missing):
        cell = CELL.model_copy(update={"execution": execution})
        assert some(found(made(band(0.25, by="gpu")), stored(28.5, table=table), cell)).missing == missing


class TestVerdict:
    @pytest.fixture
    def judged(self, trajectory):
        def make(rows: Policy, *values: float) -> Verdict:
            numbers = [Measurement(metric="fprop sqnr", where=f"place{i}", value=v) for i, v in enumerate(values)]
            provenance = trajectory().provenance.model_copy(update={"device": "NVIDIA H100"})
            record = Measurements(cell=CELL, check="gemm", values=numbers, provenance=provenance, session="s")
            return numerics.judge(record, rows, MeasuredNumbers())

        return make

    def test_band_without_numbers_leaves_the_rule_and_says_so(self, judged):
        rows = made(rule(28, 29), band(0.25))
        verdict = judged(rows, 28.01)
        assert verdict.status == "pass"
        assert verdict.unmeasured == ["no numbers for gemm (fprop sqnr @ place0); rules only"]
        assert judged(rows, 27.9).status == "fail"
        assert "place2 and 2 more); rules only" in judged(rows, *[28.5] * 5).unmeasured[0]
        of_gpu = judged(made(rule(28, 29), band(0.25, by="gpu")), 28.5)
        assert of_gpu.unmeasured == ["no numbers of NVIDIA H100 for gemm (fprop sqnr @ place0); rules only"]

    def test_number_that_nothing_judges_has_no_golden(self, judged):
        assert judged(made(band(0.25)), 28.5, 5.0).status == "no-golden"
        assert judged(made(rule(28, 29, where="place0"), band(0.25)), 28.5, 5.0).status == "no-golden"
        assert judged(made(band(0.25)), 28.5, math.nan).status == "fail"


LENGTHS = (512, 2048, 8192, 32768)


@cache
def biases(bits: int, chains: int = 128) -> dict[int, float]:
    """Mean relative error, by length, of one chain of sums in an accumulator of ``bits`` fraction bits.

    Sum and product are truncated to multiples of 2**(floor(log2(larger)) - bits). The products are positive, of two
    magnitudes of the check's grid (``checks.accumulation``).
    """
    rng = np.random.default_rng(0)
    magnitudes = np.outer([1.0, 0.5, 0.25], [1.0, 1.25, 1.5, 1.75]).ravel()
    total, exact, out = np.zeros(chains), np.zeros(chains), {}
    for k in range(1, LENGTHS[-1] + 1):
        product = rng.choice(magnitudes, chains) * rng.choice(magnitudes, chains)
        unit = np.exp2(np.floor(np.log2(np.maximum(total, product))) - bits)
        total = (np.floor(total / unit) + np.floor(product / unit)) * unit
        exact += product
        if k in LENGTHS:
            out[k] = float(np.mean(total / exact - 1))
    return out


@pytest.mark.parametrize("length", LENGTHS)
def test_floors_of_accumulation_are_those_of_13_bits(length):
    cell = Cell(model="tiny", recipe="ao-rowwise", execution=Execution.NATIVE)
    number = Measurement(metric="fprop bias", where=f"K={length}", value=0.0)
    found = some(sessions.stored()[1].rule_for(cell, "accumulation", number))
    assert found.where == (f"K={length}",)
    assert found.low <= biases(13)[length] < 0.8 * found.low
    assert biases(12)[length] < found.low
