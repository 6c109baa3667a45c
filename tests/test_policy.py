"""Which rows of the policy judge a number: the last rule, the last band, and both together."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sessions
from fp8parity.judging import numerics
from fp8parity.judging.policy import GoldenRow, LossRow, MetricRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, Rule
from fp8parity.judging.references.limits import Limits, limits
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from narrowed import some

WHY = "a made-up row"
CELL = Cell(model="nano", recipe="te-current", execution=Execution.NATIVE)
NUMBER = Measurement(metric="fprop sqnr", where="gaussian", value=28.5)


def rule(low: float, high: float, **selects: object) -> Rule:
    return Rule.model_validate({"check": "gemm", "low": low, "high": high, "why": WHY, **selects})


def band(width: float, **selects: object) -> Band:
    return Band.model_validate({"check": "gemm", "band": width, "why": "a made-up band", **selects})


def made(*rows: Rule | Band) -> Policy:
    rules, bands = tuple(r for r in rows if isinstance(r, Rule)), tuple(r for r in rows if isinstance(r, Band))
    return Policy(path=Path("policy.toml"), rule=rules, band=bands)


def stored(value: float, execution: Execution = Execution.NATIVE, table: str = "shared") -> MeasuredNumbers:
    key = NumberKey.of(CELL, "gemm", NUMBER)._replace(execution=execution)
    return MeasuredNumbers({table: {key: Number(value, "set1")}})


def found(rows: Policy, numbers: MeasuredNumbers = MeasuredNumbers(), cell: Cell = CELL) -> Limits | None:  # noqa: B008 - frozen
    return limits(rows, numbers, cell, "gemm", NUMBER, "NVIDIA H200")


class TestRows:
    def test_the_last_rule_wins(self):
        both = made(rule(0, 99), rule(28, 29, recipe="te-current"))
        assert some(both.rule_for(CELL, "gemm", NUMBER)).low == 28
        assert some(both.rule_for(CELL.model_copy(update={"recipe": "te-block"}), "gemm", NUMBER)).low == 0

    def test_the_last_band_wins(self):
        both = made(band(2, recipe="te-current"), band(0.5))
        assert some(both.band_for(CELL, "gemm", NUMBER)).band == 0.5

    @pytest.mark.parametrize(
        ("table", "narrow", "wide"),
        [
            ("loss", LossRow(margin=0.01, model=("nano",), why=WHY), LossRow(margin=0.02, why=WHY)),
            ("golden", GoldenRow(least_seeds=2, model=("nano",), why=WHY), GoldenRow(least_seeds=8, why=WHY)),
            (
                "speed",
                SpeedRow(band=0.1, memory_band=0.1, model=("nano",), why=WHY),
                SpeedRow(band=0.2, memory_band=0.2, why=WHY),
            ),
        ],
    )
    def test_the_last_row_of_a_table_wins(self, table, narrow, wide):
        def row(*rows):
            return getattr(Policy.model_validate({"path": Path("p"), table: rows}), f"{table}_row")(CELL)

        assert row(wide, narrow) is narrow
        assert row(narrow, wide) is wide

    @pytest.mark.parametrize(
        "selects",
        [
            {"recipe": ["te-block", "te-mxfp8"]}, {"model": "tiny"}, {"execution": "emulated"}, {"corpus": "text:x"},
            {"metric": "dgrad sqnr"}, {"where": "zero-row"},
        ],
    )  # fmt: skip
    def test_a_row_speaks_of_what_it_names_and_of_nothing_else(self, selects):
        assert made(rule(0, 1, **selects)).rule_for(CELL, "gemm", NUMBER) is None
        assert made(band(1, **selects)).band_for(CELL, "gemm", NUMBER) is None

    def test_a_row_speaks_of_its_own_check(self):
        assert made(rule(0, 1)).rule_for(CELL, "large", NUMBER) is None

    def test_how_a_metric_reads(self):
        row = MetricRow(name=("fprop sqnr", "dgrad sqnr"), better="higher", unit="dB")
        rows = Policy(path=Path("p"), metric=(row,))
        assert rows.metric_row("dgrad sqnr") is row
        assert rows.metric_row("bias") is None


class TestLimits:
    def test_without_a_row_there_are_none(self):
        assert found(made()) is None

    def test_a_rule_alone(self):
        range_ = some(found(made(rule(28, 29))))
        assert (range_.low, range_.high, range_.missing) == (28, 29, None)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [(28.5, (28.25, 28.75)), (28.9, (28.65, 29.0)), (28.1, (28.0, 28.35))],
    )
    def test_a_rule_and_a_band_are_intersected(self, value, expected):
        range_ = some(found(made(rule(28, 29), band(0.25)), stored(value)))
        assert (range_.low, range_.high) == pytest.approx(expected)

    def test_a_stored_number_outside_of_its_rule_allows_nothing(self):
        range_ = some(found(made(rule(28, 29), band(0.25)), stored(30)))
        assert not any(range_.allows(v) for v in (28.5, 29.0, 29.75, 30.0))

    def test_a_band_without_a_number_leaves_the_rule(self):
        range_ = some(found(made(rule(28, 29), band(0.25))))
        assert (range_.low, range_.high, range_.missing) == (28, 29, "")

    def test_a_band_alone_without_a_number_judges_nothing(self):
        range_ = some(found(made(band(0.25))))
        assert (range_.judges, range_.missing) == (False, "")

    def test_the_ratio_is_1_at_either_edge(self):
        range_ = some(found(made(rule(28, 29))))
        assert [range_.ratio(v) for v in (28, 28.5, 29, 30)] == [1, 0, 1, 3]

    def test_nan_is_never_inside(self):
        assert not some(found(made(rule(28, 29)))).allows(math.nan)


class TestStandIns:
    @pytest.mark.parametrize("execution", [Execution.NATIVE, Execution.EMULATED])
    @pytest.mark.parametrize("asked", [Execution.NATIVE, Execution.EMULATED, Execution.FUSED])
    def test_a_shared_number_stands_in_for_another_execution(self, execution, asked):
        cell = CELL.model_copy(update={"execution": asked})
        assert some(found(made(band(0.25)), stored(28.5, execution), cell)).low == 28.25

    def test_the_execution_s_own_number_comes_first(self):
        own, other = stored(20.0, Execution.FUSED).tables["shared"], stored(28.5).tables["shared"]
        cell = CELL.model_copy(update={"execution": Execution.FUSED})
        assert some(found(made(band(0.25)), MeasuredNumbers({"shared": {**other, **own}}), cell)).low == 19.75

    def test_a_gpu_s_number_stands_in_for_no_other_execution(self):
        fused = CELL.model_copy(update={"execution": Execution.FUSED})
        numbers = stored(28.5, table="nvidia-h200")
        assert some(found(made(band(0.25, by="gpu")), numbers)).missing is None
        assert some(found(made(band(0.25, by="gpu")), numbers, fused)).missing == "NVIDIA H200"

    def test_a_gpu_s_number_is_of_that_gpu_alone(self):
        assert some(found(made(band(0.25, by="gpu")), stored(28.5, table="nvidia-h100"))).missing == "NVIDIA H200"
        assert some(found(made(band(0.25, by="gpu")), stored(28.5, table="shared"))).missing == "NVIDIA H200"


class TestVerdict:
    @pytest.fixture
    def judged(self, trajectory):
        def make(rows: Policy, *values: float) -> Verdict:
            numbers = [Measurement(metric="fprop sqnr", where=f"place{i}", value=v) for i, v in enumerate(values)]
            made = trajectory().provenance.model_copy(update={"device": "NVIDIA H100"})
            record = Measurements(cell=CELL, check="gemm", values=numbers, provenance=made, session="s")
            return numerics.judge(record, rows, MeasuredNumbers())

        return make

    def test_a_band_without_numbers_is_judged_by_the_rule_and_says_so(self, judged):
        verdict = judged(made(rule(28, 29), band(0.25)), 28.01)
        assert verdict.status == "pass"
        assert verdict.unmeasured == ["no numbers for gemm (fprop sqnr @ place0); rules only"]
        assert ("not measured", verdict.unmeasured[0]) in verdict.lines
        assert judged(made(rule(28, 29), band(0.25)), 27.9).status == "fail"

    def test_many_places_are_counted(self, judged):
        verdict = judged(made(rule(28, 29), band(0.25)), *[28.5] * 5)
        places = "fprop sqnr @ place0, fprop sqnr @ place1, fprop sqnr @ place2 and 2 more"
        assert verdict.unmeasured == [f"no numbers for gemm ({places}); rules only"]

    def test_a_gpu_without_numbers_is_named(self, judged):
        verdict = judged(made(rule(28, 29), band(0.25, by="gpu")), 28.5)
        assert verdict.unmeasured == ["no numbers of NVIDIA H100 for gemm (fprop sqnr @ place0); rules only"]

    def test_a_number_that_nothing_judges_has_no_golden(self, judged):
        verdict = judged(made(band(0.25)), 28.5, 5.0)
        assert (verdict.status, verdict.green) == ("no-golden", False)
        assert verdict.headline.endswith(
            "run the check on a machine that you trust, then store its numbers: fp8parity bounds SET --write"
        )

    def test_one_number_that_was_judged_is_not_enough(self, judged):
        verdict = judged(made(rule(28, 29, where="place0"), band(0.25)), 28.5, 5.0)
        assert verdict.status == "no-golden"
        assert verdict.headline.startswith(
            "1 of 2 numbers could not be judged: they have no rule and no measured number; "
        )

    def test_nan_is_red_though_nothing_judges_it(self, judged):
        assert judged(made(band(0.25)), 28.5, math.nan).status == "fail"


LENGTHS = (512, 2048, 8192, 32768)


@cache
def biases(bits: int, chains: int = 128) -> dict[int, float]:
    """Mean relative error, by length, of one chain of sums in an accumulator of ``bits`` fraction bits.

    Sum and product are both truncated to multiples of 2**(floor(log2(larger)) - bits). The products are of two magnitudes of the
    check's grid (``checks.accumulation``), all positive.
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
class TestAccumulator:
    """The floors of the accumulation rules are those of one chain of sums of 13 fraction bits."""

    def floor(self, length: int, value: float) -> tuple[Rule, bool]:
        rows = sessions.stored()[1]
        cell = Cell(model="tiny", recipe="ao-rowwise", execution=Execution.NATIVE)
        row = some(
            rows.rule_for(cell, "accumulation", Measurement(metric="fprop bias", where=f"K={length}", value=value))
        )
        return row, row.low <= value <= row.high

    def test_13_bits_are_inside_and_near_the_floor(self, length):
        row, inside = self.floor(length, biases(13)[length])
        assert inside
        assert row.where == (f"K={length}",)
        assert biases(13)[length] / row.low > 0.8

    def test_12_bits_are_below_the_floor(self, length):
        assert not self.floor(length, biases(12)[length])[1]
