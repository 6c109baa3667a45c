"""Measured numbers: how ``fp8parity golden bounds --write`` makes them, which apply, and how faults are named."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import reports
from fp8parity.cli import main
from fp8parity.judging import gradients
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey, Source, load, updated, write
from fp8parity.records import sets
from fp8parity.records.cell import DEFAULT_CORPUS, Cell, Execution
from fp8parity.records.schema import Measurement, Measurements, Trajectory
from fp8parity.records.storage import name_of, write_json
from fp8parity.workload.presets import presets
from sessions import GOLDEN, stored

NATIVE, EMULATED, FUSED = Execution.NATIVE, Execution.EMULATED, Execution.FUSED
KEY = NumberKey("gemm", "sqnr", "a", "tiny", "te-current", NATIVE)
SHARED = Band(check=("gemm",), metric=("sqnr",), band=0.75, why="a made-up row")
OF_GPU = Band(check=("gemm",), metric=("bias",), band=0.75, by="gpu", why="a made-up row")
POLICY = Policy(path=Path("p"), band=(SHARED, OF_GPU))
TOML = "".join(
    f'[[band]]\ncheck = "gemm"\nmetric = "{m}"\nband = 0.75\nby = "{by}"\nwhy = "a made-up row"\n'
    for m, by in (("sqnr", "shared"), ("bias", "gpu"))
)
SOURCE = Source("a1", "set", "NVIDIA H200", "torch 0", "a1b2")


def record(
    value: float = 28.5,
    execution: Execution = NATIVE,
    metric: str = "sqnr",
    where: str = "a",
    ranks: int = 1,
    **changes: object,
) -> Measurements:
    given = {"device": "NVIDIA H200", "capability": [9, 0]} | changes
    return Measurements(
        cell=Cell(model="tiny", recipe="te-current", execution=execution, ranks=ranks),
        check="gemm",
        values=[Measurement(metric=metric, where=where, value=value)],
        provenance=reports.provenance(**given),
        session="s",
    )


def numbers(*keys: NumberKey, table: str = "shared") -> MeasuredNumbers:
    return MeasuredNumbers({table: {key: Number(28.5, "a1") for key in keys}}, (SOURCE,))


Bounds = Callable[..., list[str]]


@pytest.fixture
def bounds(tmp_path, capsys) -> Bounds:
    """Run ``fp8parity golden bounds`` on a record set and return what it printed."""
    (tmp_path / "policy.toml").write_text(TOML)

    def call(*records: Measurements | Trajectory, write: bool = True, code: int = 0) -> list[str]:
        folder = tmp_path / "set"
        shutil.rmtree(folder, ignore_errors=True)
        for r in records:
            write_json(folder / name_of(r), r)
        options = ["--golden-dir", str(tmp_path), *(["--write"] if write else [])]
        assert main(["golden", "bounds", str(folder), *options]) == code
        out, err = capsys.readouterr()
        return (err if code else out).splitlines()

    return call


class TestWriting:
    def test_new_number_is_signed_and_written(self, bounds, tmp_path):
        line = "shared: gemm: sqnr @ a of te-current on tiny, native: new, 28.4568"
        assert bounds(record(28.456789), write=False) == [line]
        assert not (tmp_path / "numerics").exists()
        assert bounds(record(28.456789)) == [line]
        found = load(tmp_path)
        [source] = found.sources
        assert found.tables["shared"][KEY] == Number(28.4568, source.source)
        assert source[1:4] == ("set", "NVIDIA H200", source.packages) and source.sha256.startswith(source.source)

    @pytest.mark.parametrize(
        ("value", "change"),
        [(28.75, None), (28.25, None), (28.7501, "28.5 -> 28.7501 (+0.25"), (28.2499, "28.5 -> 28.2499 (-0.25")],
    )
    def test_number_is_replaced_beyond_a_third_of_its_band(self, value, change):
        found, lines = updated(numbers(KEY), [record(value)], SOURCE, POLICY)
        assert found.tables["shared"][KEY].value == (value if change else 28.5)
        assert lines == ([f"shared: {KEY}: {change}, band 0.75)"] if change else [])

    @pytest.mark.parametrize(("value", "lines"), [(28.75, 0), (28.7501, 1)])
    @pytest.mark.parametrize("execution", [EMULATED, FUSED])
    def test_number_is_added_beyond_a_third_of_its_stand_in(self, execution, value, lines):
        found, new = updated(numbers(KEY), [record(value, execution)], SOURCE, POLICY)
        assert len(new) == lines == len(found.tables["shared"]) - 1

    def test_number_of_a_gpu_does_not_stand_in_for_another_execution(self):
        held = numbers(KEY._replace(metric="bias"), table="nvidia-h200")
        _, lines = updated(held, [record(28.5, EMULATED, "bias")], SOURCE, POLICY)
        assert lines == [f"nvidia-h200: {KEY._replace(metric='bias', execution=EMULATED)}: new, 28.5"]

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_number_that_is_not_finite_is_refused(self, value):
        with pytest.raises(ValueError, match=f": {value} cannot be a reference, because it is not finite$"):
            updated(MeasuredNumbers(), [record(value)], SOURCE, POLICY)


class TestFiles:
    def test_committed_tables_survive_a_round_trip(self, tmp_path):
        write(tmp_path, load(GOLDEN))
        for path in sorted((GOLDEN / "numerics").glob("*.csv")):
            assert (tmp_path / "numerics" / path.name).read_bytes() == path.read_bytes(), path.name

    @pytest.mark.parametrize(
        ("table", "old", "new", "message"),
        [
            ("shared", "check,metric", "chek,metric", "shared.csv:1: expected the columns check, metric, where"),
            ("shared", "28.5", "nan", "shared.csv:2: nan is not a finite number"),
            ("shared", "native", "natve", "shared.csv:2: unknown execution 'natve'"),
            ("shared", ",a1\n", "\n", "shared.csv:2: expected 8 fields"),
            ("shared", ",a1\n", ",zz\n", "shared.csv:2: source 'zz' is not in sources.csv"),
            ("shared", "a1\n", "a1\ngemm,sqnr,a,tiny,te-current,native,28,a1\n", "shared.csv:3: gemm: sqnr @ a"),
            ("nvidia-h100", "28.5", "28.6", "nvidia-h100.csv:2: source a1 was measured on NVIDIA H200; its numbers belong to nvidia-h200.csv"),
        ],
    )  # fmt: skip
    def test_fault_of_a_table_is_named_with_file_and_line(self, tmp_path, table, old, new, message):
        write(tmp_path, numbers(KEY, table=table if table != "sources" else "shared"))
        path = tmp_path / "numerics" / f"{table}.csv"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        with pytest.raises(ValueError, match=re.escape(message)):
            load(tmp_path)


class TestLookup:
    @pytest.mark.parametrize(
        ("band", "held", "asked", "is_found"),
        [
            (SHARED, NATIVE, EMULATED, True),
            (SHARED, EMULATED, FUSED, True),
            (SHARED, FUSED, NATIVE, False),
            (OF_GPU, NATIVE, NATIVE, True),
            (OF_GPU, NATIVE, EMULATED, False),
        ],
    )
    def test_only_a_shared_number_stands_in_for_another_execution(self, band, held, asked, is_found):
        table = numbers(KEY._replace(execution=held), table={"shared": "shared", "gpu": "nvidia-h200"}[band.by])
        cell, m = record(execution=asked).cell, record().values[0]
        assert (table.find(cell, "gemm", m, band, "NVIDIA H200") is not None) is is_found
        assert table.find(cell.model_copy(update={"ranks": 2}), "gemm", m, band, "NVIDIA H200") is None

    @pytest.mark.parametrize("execution", [NATIVE, EMULATED])
    def test_place_of_a_stand_in_is_missing_beside_a_number_of_its_own(self, execution):
        own = numbers(KEY, KEY._replace(execution=execution, where="b"))
        assert own.missing(record(execution=execution, where="b"), POLICY) == [("sqnr", "a")]


STORED = load(GOLDEN)
SETS = sorted({s.records for s in STORED.sources if (GOLDEN / "records" / s.records).is_file()})
"""Of the record sets that gave numbers, those that are in the repository."""


@cache
def again(name: str) -> MeasuredNumbers:
    """The numbers that a record set gives, from nothing."""
    rules, found = stored()[1], MeasuredNumbers()
    for machine in sets.machines(sets.load([GOLDEN / "records" / name])):
        made = [*machine.checks.values(), *gradients.numbers_of(machine)]
        found, _ = updated(found, made, Source.of(machine.records, name), rules)
    return found


class TestCommitted:
    @pytest.mark.parametrize("name", SETS)
    def test_record_set_gives_every_number_that_names_it(self, name):
        mine = {s for s in STORED.sources if s.records == name}
        names = {s.source for s in mine}
        expected = {(t, key): n for t, table in STORED.tables.items() for key, n in table.items() if n.source in names}
        assert expected and mine <= set(again(name).sources)
        assert {(table, key): again(name).tables[table][key] for table, key in expected} == expected

    def test_every_number_has_a_band(self):
        rules: Policy = stored()[1]
        for table in STORED.tables.values():
            for key, n in table.items():
                corpus = presets()[key.model].corpus if key.model in presets() else DEFAULT_CORPUS
                cell = Cell(model=key.model, recipe=key.recipe, execution=key.execution).on(corpus)
                m = Measurement(metric=key.metric, where=key.where, value=n.value)
                assert isinstance(rules.rows_for(cell, key.check).lookup(m)[1], Band), key
