"""Measured numbers: how ``fp8parity bounds --write`` makes them, how they are kept, and how their faults are named."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judging import gradients, measured_numbers
from fp8parity.judging.measured_numbers import (
    DIGITS,
    REWRITTEN,
    MeasuredNumbers,
    Number,
    NumberKey,
    Source,
    load,
    updated,
    write,
)
from fp8parity.judging.number_rows import Band
from fp8parity.judging.policy import Policy
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import name_of, write_json
from fp8parity.workload.presets import presets
from sessions import GOLDEN, stored

TOML = '[[band]]\ncheck = "gemm"\nmetric = "fprop sqnr"\nband = 0.6\nwhy = "a made-up row"\n'
TOML += '[[band]]\ncheck = "gemm"\nmetric = "fprop bias"\nband = 0.6\nby = "gpu"\nwhy = "a made-up row"\n'
CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE)
KEY = NumberKey("gemm", "fprop sqnr", "gaussian", "tiny", "te-current", Execution.NATIVE)


@pytest.fixture
def record(trajectory):
    def make(value: float, metric="fprop sqnr", where="gaussian", capability=(9, 0), **changes) -> Measurements:
        made = trajectory().provenance.model_copy(
            update={"device": "NVIDIA H200", "capability": capability and list(capability)}
        )
        values = [Measurement(metric=metric, where=where, value=value)]
        base = Measurements(cell=CELL, check="gemm", values=values, provenance=made, session="s")
        return base.model_copy(update=changes)

    return make


@pytest.fixture
def bounds(record, tmp_path, capsys):
    """Writes the numbers of a record set into a golden folder; returns what was printed."""
    (tmp_path / "policy.toml").write_text(TOML)

    def call(*records: Measurements, write: bool = True) -> list[str]:
        folder = tmp_path / "set"
        shutil.rmtree(folder, ignore_errors=True)
        for r in records:
            write_json(folder / name_of(r), r)
        assert main(["bounds", str(folder), "--golden-dir", str(tmp_path), *(["--write"] if write else [])]) == 0
        return capsys.readouterr().out.splitlines()

    return call


def number(folder: Path, table: str = "shared", key: NumberKey = KEY) -> Number:
    return load(folder).tables[table][key]


UNCHANGED = ["no number differs from the stored one by more than a third of its band"]


class TestWriting:
    def test_a_new_number_is_told_and_written(self, bounds, record, tmp_path):
        assert bounds(record(28.5)) == ["shared: gemm: fprop sqnr @ gaussian of te-current on tiny, native: new, 28.5"]
        assert number(tmp_path).value == 28.5

    def test_without_write_nothing_is_written(self, bounds, record, tmp_path):
        assert len(bounds(record(28.5), write=False)) == 1
        assert not (tmp_path / "numerics").exists()

    @pytest.mark.parametrize(
        ("ci", "dirty", "says"), [("true", False, "CI never records goldens"), ("", True, "uncommitted changes")]
    )
    def test_numbers_that_are_no_reference_are_refused(self, record, tmp_path, capsys, monkeypatch, ci, dirty, says):
        monkeypatch.setenv("CI", ci)
        (tmp_path / "policy.toml").write_text(TOML)
        made = record(28.5)
        made = made.model_copy(update={"provenance": made.provenance.model_copy(update={"dirty": dirty})})
        write_json(tmp_path / "set" / name_of(made), made)
        assert main(["bounds", str(tmp_path / "set"), "--golden-dir", str(tmp_path), "--write"]) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "numerics").exists()

    @pytest.mark.parametrize("value", [28.31, 28.69])
    def test_a_change_within_a_third_of_the_band_is_left(self, bounds, record, tmp_path, value):
        bounds(record(28.5))
        before = (tmp_path / "numerics" / "shared.csv").read_bytes()
        assert bounds(record(value)) == UNCHANGED
        assert (tmp_path / "numerics" / "shared.csv").read_bytes() == before

    @pytest.mark.parametrize(
        ("value", "change"), [(28.29, "28.5 -> 28.29 (-0.21, band 0.6)"), (28.71, "28.5 -> 28.71 (+0.21, band 0.6)")]
    )
    def test_a_change_beyond_a_third_of_the_band_is_signed_and_written(self, bounds, record, tmp_path, value, change):
        bounds(record(28.5))
        assert bounds(record(value)) == [f"shared: gemm: fprop sqnr @ gaussian of te-current on tiny, native: {change}"]
        assert number(tmp_path).value == value

    def test_the_source_names_the_record_set(self, bounds, record, tmp_path):
        bounds(record(28.5))
        [source] = load(tmp_path).sources
        assert (source.records, source.device, source.packages) == ("set", "NVIDIA H200", "torch 0")
        assert number(tmp_path).source == source.source == source.sha256[:8]

    def test_a_source_that_no_number_needs_is_dropped(self, bounds, record, tmp_path):
        bounds(record(28.5))
        first = load(tmp_path).sources
        bounds(record(20.0))
        assert len(load(tmp_path).sources) == 1
        assert load(tmp_path).sources != first

    def test_a_number_that_no_band_speaks_of_is_not_kept(self, bounds, record):
        assert bounds(record(28.5, metric="dgrad sqnr")) == UNCHANGED

    def test_a_gpu_s_number_has_a_table_of_its_own(self, bounds, record, tmp_path):
        [line] = bounds(record(-0.02, metric="fprop bias"))
        assert line.startswith("nvidia-h200: gemm: fprop bias @ gaussian")
        assert number(tmp_path, "nvidia-h200", KEY._replace(metric="fprop bias")).value == -0.02

    def test_a_cpu_gives_no_number_of_a_gpu(self, bounds, record):
        assert bounds(record(-0.02, metric="fprop bias", capability=None)) == UNCHANGED


class TestFiles:
    def test_lines_are_sorted(self, bounds, record, tmp_path):
        cells = [CELL.model_copy(update={"recipe": r}) for r in ("te-current", "ao-rowwise", "te-block")]
        bounds(*(record(28.5, cell=c) for c in cells))
        header, *lines = (tmp_path / "numerics" / "shared.csv").read_text().splitlines()
        assert header == "check,metric,where,model,recipe,execution,value,source"
        assert lines == sorted(lines)
        assert len(lines) == 3

    def test_tables_survive_a_round_trip(self, tmp_path):
        source = Source("a1", 'set "one", two.zip', "NVIDIA H200", "torch 2, torchao 0", "a1b2")
        keys = {KEY: Number(28.46, "a1"), KEY._replace(where='K=512, "odd"'): Number(-1.234e-05, "a1")}
        made = MeasuredNumbers({"shared": keys, "nvidia-h200": {KEY: Number(0.1, "a1")}}, (source,))
        write(tmp_path, made)
        assert load(tmp_path) == made

    def test_the_project_s_tables_survive_a_round_trip(self, tmp_path):
        write(tmp_path, load(GOLDEN))
        for path in sorted((GOLDEN / "numerics").glob("*.csv")):
            assert (tmp_path / "numerics" / path.name).read_bytes() == path.read_bytes(), path.name

    def test_a_folder_without_numbers_has_none(self, tmp_path):
        assert load(tmp_path) == MeasuredNumbers()

    @pytest.mark.parametrize(
        ("name", "old", "new", "message"),
        [
            ("shared", "check,metric", "chek,metric", "shared.csv:1: expected the columns check, metric, where"),
            ("shared", "28.5", "abc", "shared.csv:2: could not convert string to float: 'abc'"),
            ("shared", "native", "natve", "shared.csv:2: unknown execution 'natve'"),
            ("shared", ",a1\n", "\n", "shared.csv:2: expected 8 fields"),
            ("shared", ",a1\n", ",a1,b\n", "shared.csv:2: expected 8 fields"),
            ("shared", ",a1\n", ",zz\n", "shared.csv:2: source 'zz' is not in sources.csv"),
            (
                "shared",
                "a1\n",
                "a1\ngemm,fprop sqnr,gaussian,tiny,te-current,native,28,a1\n",
                "shared.csv:3: gemm: fprop sqnr @ gaussian",
            ),
            ("sources", "sha256", "sha", "sources.csv:1: expected the columns source, records"),
        ],
    )
    def test_faults_name_file_and_line(self, tmp_path, name, old, new, message):
        write(tmp_path, MeasuredNumbers({"shared": {KEY: Number(28.5, "a1")}}, (Source("a1", "r", "d", "p", "h"),)))
        path = tmp_path / "numerics" / f"{name}.csv"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=re.escape(message)):
            load(tmp_path)


class TestSource:
    def test_it_is_of_the_content_and_not_of_the_order(self, record):
        a, b = record(1.0), record(2.0, where="zero-row")
        assert Source.of([a, b], "x") == Source.of([b, a], "x")
        assert Source.of([a], "x").source != Source.of([b], "x").source


STORED = load(GOLDEN)
SETS = sorted({s.records for s in STORED.sources})


@cache
def again(name: str) -> MeasuredNumbers:
    """The numbers that a committed record set gives, from nothing."""
    rules, numbers = stored()[1], MeasuredNumbers()
    path = GOLDEN / "records" / name
    for machine in sets.machines(sets.load([path])):
        made = [*machine.checks.values(), *gradients.numbers_of(machine)]
        numbers, _ = updated(numbers, made, Source.of(machine.records, path.name), rules)
    return numbers


class TestCommitted:
    def test_the_first_record_set_is_a_source(self):
        assert "h200.zip" in SETS

    @pytest.mark.parametrize("name", SETS)
    def test_the_record_set_gives_every_number_that_names_it(self, name):
        mine = {s.source for s in STORED.sources if s.records == name}
        expected = {
            (table, key): n for table, found in STORED.tables.items() for key, n in found.items() if n.source in mine
        }
        assert expected
        assert {(table, key): again(name).tables[table][key] for table, key in expected} == expected

    @pytest.mark.parametrize("name", SETS)
    def test_the_record_set_is_the_one_that_its_source_names(self, name):
        assert {s for s in STORED.sources if s.records == name} <= set(again(name).sources)

    def test_every_number_has_a_band(self):
        """A number that no band speaks of would judge nothing."""
        rules: Policy = stored()[1]
        for table in STORED.tables.values():
            for key, n in table.items():
                cell = Cell(model=key.model, recipe=key.recipe, execution=key.execution).on(presets()[key.model].corpus)
                m = Measurement(metric=key.metric, where=key.where, value=n.value)
                assert isinstance(rules.band_for(cell, key.check, m), Band), key


def test_numbers_are_rounded_to_a_few_digits(record):
    rules = Policy(path=Path("p"), band=(Band(check=("gemm",), band=0.1, why="a made-up row"),))
    numbers, _ = updated(MeasuredNumbers(), [record(28.456789)], Source("a1", "r", "d", "p", "h"), rules)
    assert (numbers.tables["shared"][KEY].value, DIGITS, REWRITTEN) == (28.4568, 6, 1 / 3)
    assert measured_numbers.load(Path("nowhere")) == MeasuredNumbers()
