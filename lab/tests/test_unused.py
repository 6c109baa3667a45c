"""What a complete run did not need is listed: rows, goldens and numbers."""

from __future__ import annotations

import pytest
from fp8parity.cli import main
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.policy import GoldenRow, LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Band, Complete, MetricRow, Numbers, Rule, Trend
from fp8parity.judging.policy.selectors import Equal
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.numbers import MeasuredNumbers, Number
from fp8parity.records.schema import AnyRecord, Measurement, Measurements
from fp8parity.records.storage import name_of, write_json
from fp8parity_lab.unused import unused
from sessions import GOLDEN
from test_cli import measured
from test_coverage import CELL, KEY, POLICY, WHY
from test_coverage import goldens as goldens
from timings import made as timed


@pytest.fixture
def lines(trajectory, goldens):
    """What nothing needed of a policy and goldens, after a run that trained, checked and timed one recipe."""
    runs = [trajectory(r, s, 1e-4 * (s + 1) * (r != "bf16")) for r in ("bf16", "te-current") for s in range(3)]
    values = [Measurement(metric="fprop sqnr", where="gaussian", value=28.5)]
    check = Measurements(cell=CELL, check="gemm", values=values, provenance=trajectory().provenance, session="s")

    def call(policy: Policy = POLICY, stored: Goldens | None = None, *more: AnyRecord) -> list[str]:
        stored = stored or goldens
        return unused(evaluate([*runs, check, timed(), *more], stored, policy), stored, policy)

    return call


def test_a_run_that_needs_everything_leaves_nothing(lines):
    assert lines() == []


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (LossRow(margin=0.01, recipe=("te-nvfp4",), why=WHY), "[[loss]] row 2: recipe = ('te-nvfp4',)"),
        (GoldenRow(least_seeds=2, model=("1b",), why=WHY), "[[golden]] row 2: model = ('1b',)"),
        (SpeedRow(band=0.1, memory_band=0.1, model=("1b",), why=WHY), "[[speed]] row 2: model = ('1b',)"),
        (Rule(check=("gemm",), where=("K=1",), low=0, high=1, why=WHY), "[[rule]] row 3: check = ('gemm',), where = ('K=1',)"),
        (Trend(check=("gemm",), metric=("bias",), slack=1, why=WHY), "[[trend]] row 1: check = ('gemm',)"),
        (Complete(check="codes", number=(Numbers(metric=("bias",), where=("g",)),), why=WHY), "[[complete]] row 2: check = codes"),
        (Band(check=("gemm",), metric=("wgrad sqnr",), band=1, why=WHY), "[[band]] row 2: check = ('gemm',)"),
        (Equal(recipe=("te-current", "ao-tensorwise"), why=WHY), "[[equal]] row 1: recipe = ('te-current', 'ao-tensorwise')"),
        (MetricRow(name=("bias",), better="lower", unit="dB"), "[[metric]] row 1: name = ('bias',)"),
    ],
)  # fmt: skip
def test_a_planted_row_that_matches_nothing_is_named(lines, row, line):
    table = line[2:].partition("]")[0]
    [found] = lines(POLICY.model_copy(update={table: (*getattr(POLICY, table), row)}))
    assert found.startswith(line)


def test_rows_of_trained_recipes_and_measured_metrics_are_needed(lines):
    both = Equal(recipe=("bf16", "te-current"), why=WHY)
    assert lines(POLICY.model_copy(update={"equal": (both,)})) == []
    metric = MetricRow(name=("bias", "fprop sqnr"), better="higher", unit="dB")
    assert lines(POLICY.model_copy(update={"metric": (metric,)})) == []


def test_a_row_that_a_later_one_hides_is_named(lines):
    """Of the rows that select a cell the last one applies: the first one judges nothing any more."""
    wide = Rule(check=("gemm",), low=0, high=99, why=WHY)
    assert lines(POLICY.model_copy(update={"rule": (*POLICY.rule, wide)})) == [
        "[[rule]] row 1: check = ('gemm',), low = 28.0, high = 29.0"
    ]


def test_a_golden_that_nothing_trained_for_is_named(lines, goldens):
    more = dict(goldens.loss) | {("1b", "text:x"): goldens.loss["nano", "topics"]}
    assert lines(stored=Goldens(more, goldens.throughput, goldens.numbers)) == ["golden of 1b on text:x"]


def test_numbers_that_nothing_measured_are_counted(lines, goldens):
    more = {
        KEY: Number(28.5, "a1"),
        KEY._replace(recipe="te-gone"): Number(1.0, "a1"),
        KEY._replace(where="z"): Number(1.0, "a1"),
    }
    assert lines(stored=Goldens(goldens.loss, goldens.throughput, MeasuredNumbers({"shared": more}))) == [
        "2 of 3 numbers of shared.csv, first gemm: fprop sqnr @ gaussian of te-gone on nano, emulated"
    ]


def test_command_names_unused_goldens(trajectory, tmp_path, capsys):
    record = measured(trajectory, 28.5)
    write_json(tmp_path / name_of(record), record)
    assert main(["unused", str(tmp_path), "--golden-dir", str(GOLDEN)]) == 0
    assert "golden of 1b on topics" in capsys.readouterr().out.splitlines()
