"""Measured numbers as a table: which number stands for a cell, which a record lacks, when one is replaced, and what a file may not hold."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import reports
from fp8parity.judging.policy import Policy
from fp8parity.judging.policy.rows import Band
from fp8parity.judging.references.inventories import Inventories
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey, Source, load, updated, write
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements

NATIVE, EMULATED, FUSED = Execution.NATIVE, Execution.EMULATED, Execution.FUSED
KEY = NumberKey("gemm", "sqnr", "a", "tiny", "te-current", NATIVE)
SHARED = Band(check=("gemm",), metric=("sqnr",), band=0.75, why="a made-up row")
OF_GPU = Band(check=("gemm",), metric=("bias",), band=0.75, by="gpu", why="a made-up row")
POLICY = Policy(path=Path("p"), band=(SHARED, OF_GPU))
SOURCE = Source("a1", "set", "NVIDIA H200", "torch 0", "a1b2")


def record(
    value: float = 28.5, execution: Execution = NATIVE, metric: str = "sqnr", where: str = "b", ranks: int = 1
) -> Measurements:
    cell = Cell(model="tiny", recipe="te-current", execution=execution, ranks=ranks)
    made = reports.provenance(device="NVIDIA H200", capability=[9, 0])
    return Measurements(
        cell=cell,
        check="gemm",
        values=[Measurement(metric=metric, where=where, value=value)],
        provenance=made,
        session="s",
    )


def numbers(*keys: NumberKey, table: str = "shared") -> MeasuredNumbers:
    return MeasuredNumbers({table: {key: Number(28.5, "a1") for key in keys}}, (SOURCE,))


@pytest.mark.parametrize(
    ("stored", "asked", "ranks", "lost"),
    [
        (NATIVE, NATIVE, 1, ["sqnr @ a", "sqnr @ c"]),
        (NATIVE, EMULATED, 1, ["sqnr @ a", "sqnr @ c"]),
        (EMULATED, NATIVE, 1, ["sqnr @ a", "sqnr @ c"]),
        (NATIVE, FUSED, 1, []),
        (FUSED, NATIVE, 1, []),
        (FUSED, FUSED, 1, ["sqnr @ a", "sqnr @ c"]),
        (NATIVE, NATIVE, 2, []),
    ],
)
def test_a_record_lacks_the_places_of_its_execution_or_of_its_stand_in(stored, asked, ranks, lost):
    """A number of which no band speaks is not asked for."""
    keys = [KEY._replace(execution=stored, where=where) for where in "abc"]
    found = numbers(*keys, KEY._replace(execution=stored, metric="gain"))
    assert found.lost(record(execution=asked, ranks=ranks), POLICY) == lost


def test_a_record_with_own_numbers_lacks_none_of_another_execution():
    found = numbers(KEY._replace(where="b"), KEY._replace(execution=EMULATED))
    assert found.lost(record(), POLICY) == []
    assert found.lost(record(execution=EMULATED), POLICY) == ["sqnr @ a"]


def test_a_record_lacks_the_numbers_of_its_own_gpu():
    """Each place once."""
    key = KEY._replace(metric="bias")
    assert numbers(key, table="nvidia-h200").lost(record(), POLICY) == ["bias @ a"]
    assert numbers(key, table="nvidia-h100").lost(record(), POLICY) == []
    both = MeasuredNumbers({name: {KEY: Number(1.0, "a1")} for name in ("shared", "nvidia-h200")})
    assert both.lost(record(), POLICY) == ["sqnr @ a"]


@pytest.mark.parametrize(
    ("band", "stored", "asked", "is_found"),
    [
        (SHARED, NATIVE, EMULATED, True),
        (SHARED, EMULATED, FUSED, True),
        (SHARED, FUSED, NATIVE, False),
        (OF_GPU, NATIVE, NATIVE, True),
        (OF_GPU, NATIVE, EMULATED, False),
        (OF_GPU, NATIVE, FUSED, False),
    ],
)
def test_only_a_shared_number_stands_in_for_another_execution(band, stored, asked, is_found):
    table = {"shared": "shared", "gpu": "nvidia-h200"}[band.by]
    held = numbers(KEY._replace(execution=stored, where="b"), table=table)
    [m], cell = record().values, record(execution=asked).cell
    assert held.find(cell, "gemm", m, band, "NVIDIA H200") == (Number(28.5, "a1") if is_found else None)


def test_own_numbers_stand_before_those_of_the_base():
    """Both keep their tables, their sources and their inventories."""
    other = Source("b2", "base", "NVIDIA H100", "torch 9", "b2c3")
    base = MeasuredNumbers(
        {"shared": {KEY: Number(1.0, "b2"), KEY._replace(where="z"): Number(2.0, "b2")}, "nvidia-h100": {}}, (other,)
    )
    own = MeasuredNumbers({"shared": {KEY: Number(3.0, "a1")}, "nvidia-h200": {}}, (SOURCE,))
    assert own.over(base) == MeasuredNumbers(
        {
            "shared": {KEY: Number(3.0, "a1"), KEY._replace(where="z"): Number(2.0, "b2")},
            "nvidia-h100": {},
            "nvidia-h200": {},
        },
        (other, SOURCE),
        Inventories().over(Inventories()),
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (28.75, []),
        (28.25, []),
        (28.7501, ["shared: gemm: sqnr @ b of te-current on tiny, native: 28.5 -> 28.7501 (+0.25, band 0.75)"]),
        (28.2499, ["shared: gemm: sqnr @ b of te-current on tiny, native: 28.5 -> 28.2499 (-0.25, band 0.75)"]),
    ],
)
def test_a_number_is_replaced_beyond_a_third_of_its_band(value, said):
    """The band is 0.75, and a third of it is exactly 0.25."""
    key = KEY._replace(where="b")
    found, lines = updated(numbers(key), [record(value)], SOURCE, POLICY)
    assert (lines, found.tables["shared"][key].value) == (said, value if said else 28.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_no_reference(value):
    says = f"gemm: sqnr @ b of te-current on tiny, native: {value} cannot be a reference, because it is not finite"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        updated(MeasuredNumbers(), [record(value)], SOURCE, POLICY)


@pytest.mark.parametrize(
    ("table", "old", "new", "says"),
    [
        ("shared", "28.5", "nan", "nan is not a finite number"),
        ("shared", "28.5", "-inf", "-inf is not a finite number"),
        ("shared", "28.5", "much", "could not convert string to float: 'much'"),
        ("shared", ",a1", ",b2", "source 'b2' is not in sources.csv"),
        ("nvidia-h100", "28.5", "28.6", "source a1 was measured on NVIDIA H200; its numbers belong to nvidia-h200.csv"),
    ],
)
def test_a_line_that_holds_no_number_of_its_table_is_named(tmp_path, table, old, new, says):
    write(tmp_path, numbers(KEY, table=table))
    path = tmp_path / "numerics" / f"{table}.csv"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}:2: {says}')}$"):
        load(tmp_path)


def test_the_numbers_of_a_gpu_stand_in_its_file(tmp_path):
    for table in ("shared", "nvidia-h200"):
        write(tmp_path / table, numbers(KEY, table=table))
        assert load(tmp_path / table) == numbers(KEY, table=table)
