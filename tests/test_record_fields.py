"""Cells, modes and fields of records: names, accepted values, ranks, and the parts of a cell."""

from __future__ import annotations

import ast
import re
import runpy
from enum import StrEnum
from math import inf, nan

import gemm_records
import pytest
import reports
import timings
from documents import ROOT
from fp8parity.records.cell import Cell, Execution, Mode, Strict
from fp8parity.records.check_names import CHECKS, FILE
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes, TimedCast, TimedGemm
from fp8parity.records.manifest import Selected, Shard
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import AnyRecord, Measurements, NonFinite, Probed, Trajectory
from fp8parity.records.times import (
    BlockShape,
    DeviceProfile,
    LinearTime,
    PartTime,
    Split,
    Throughput,
    TimeSplit,
    Watch,
)
from fp8parity.report.commands import command
from fp8parity.report.evidence import Evidence
from fp8parity.runner import declared
from pydantic import TypeAdapter, ValidationError
from verdicts import verdict as made

LARGEST = 2**63 - 1
CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE)
GEMM = gemm_records.made().gemms[0]
COPY = PartTime(part="copy", form="eager", seconds=1.0, low=1.0, high=1.0)
BLOCK = BlockShape(dim=8, hidden=16, heads=2, kv_heads=1, sequence=4, micro_batch=1)
SIDE = Split(seconds=1.0, categories={"gemm": 1.0})
HERE = reports.provenance()
CHECK = Measurements(cell=CELL, check="gemm", values=[], provenance=HERE, session="s")
SPLIT = TimeSplit(cell=CELL, mode=Mode.EAGER, tokens=1, bf16=SIDE, recipe=SIDE, provenance=HERE, session="s")
PROFILE = DeviceProfile(cell=CELL, memory=1, peak_flops=1.0, times=[COPY], provenance=HERE, session="s")

COUNT = [0, LARGEST], [-1, LARGEST + 1]
POSITIVE = [1, LARGEST], [0, LARGEST + 1]
QUANTITY = [1e-300, 1e9], [0.0, inf, nan]
FINITE = [-1.0, 0.0], [inf, -inf, nan]
TIMES = [[1e-9]], [[], [0.0]]
NAME = ["a b", "x" * 150], ["", "x" * 151, *(f"a{c}b" for c in "/\\<>\x00\x1f\n\x7f\u2028\u2029")]
CORPUS = ["/a/<b>\\", "x" * 1000], ["", "x" * 1001, *(f"a{c}b" for c in "\x00\x1f\n\x7f\u2028\u2029")]


@pytest.mark.parametrize(
    ("model", "field", "values"),
    [
        (Cell, "model", NAME),
        (Cell, "corpus", CORPUS),
        (Cell, "ranks", POSITIVE),
        (NonFinite, "step", COUNT),
        (Probed, "sqnr", ([-inf, inf, 25.0], ["a"])),
        (Trajectory, "seed", COUNT),
        (Trajectory, "floor", FINITE),
        (Measurements, "check", NAME),
        (Throughput, "bf16_seconds", TIMES),
        (Throughput, "flops_per_token", QUANTITY),
        (LinearTime, "recipe_seconds", TIMES),
        (BlockShape, "dim", POSITIVE),
        (Watch, "power_capped", ([None, 0.0, 1.0], [-1e-9, 1.000001])),
        (GemmTimes, "gemms", ([[GEMM]], [[]])),
        (GemmTimes, "tool", (["", "deepgemm"], ["a/b"])),
        (TimedGemm, "part", (["layer", "model"], ["head"])),
        (TimedCast, "operand", (["x", "w", "dy"], ["y"])),
        (DeviceProfile, "times", ([[COPY]], [[]])),
        (Provenance, "capability", ([None, [9, 0]], [[9], [9, 0, 0]])),
        (Selected, "outcome", (["passed", "failed", "xfailed", "skipped", "not run"], ["xpassed"])),
    ],
)
def test_field_accepts_these_values_only(
    model: type[Strict], field: str, values: tuple[list[object], list[object]]
) -> None:
    adapter: TypeAdapter[object] = TypeAdapter(model.model_fields[field].rebuild_annotation())
    for value in values[0]:
        assert adapter.validate_python(value) == value
    for value in values[1]:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
    with pytest.raises(ValidationError):
        model.model_validate({"surprise": 1})


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (Execution, "native fused emulated core"),
        (Mode, "eager compiled graphed compiled-graphed"),
        (GemmMode, "kernel training"),
        (Accumulation, "split fast none"),
    ],
)
def test_words_of_files_are_fixed(words: type[StrEnum], names: str) -> None:
    assert " ".join(words) == names
    with pytest.raises(ValueError, match=f"unknown {words.__name__.lower()} 'x': known: "):
        words("x")


@pytest.mark.parametrize(
    ("record", "changes", "content"),
    [
        (timings.made(), {}, "training-step"),
        (timings.made(), {"variant": "length 512"}, "training-step-length-512"),
        (timings.made(), {"block": BLOCK, "variant": "graphed"}, "block-graphed"),
        (SPLIT, {}, "training-step-split"),
        (SPLIT, {"block": BLOCK, "variant": "a b"}, "block-split-a-b"),
        (CHECK, {}, "gemm"),
        (CHECK, {"variant": "planted"}, "gemm-planted"),
        (PROFILE, {}, "profile"),
        (gemm_records.made(), {}, "gemms-31x512"),
        (gemm_records.main_grads(gemm_records.made()), {"tool": "x"}, "gemms-31x512-main_grads-x"),
    ],
)
def test_record_names_its_content(record: AnyRecord, changes: dict[str, object], content: str) -> None:
    changed = record.model_copy(update=changes)
    assert changed.content == content
    assert type(record).model_validate_json(changed.model_dump_json()) == changed


def test_names_of_cells():
    assert (CELL.id, CELL.title, CELL.label) == ("te-current-tiny-native",) * 2 + ("te-current native",)
    assert CELL.on("text:x").title == "te-current-tiny-native on text:x"
    assert (CELL.control.id, CELL.control.label, CELL.control.is_control) == ("bf16-tiny-native", "bf16", True)
    two = CELL.model_copy(update={"ranks": 2})
    assert (two.id, two.label, two.is_control) == ("te-current-tiny-native-x2", "te-current native x2", False)
    assert (two.control.id, two.control.label) == ("bf16-tiny-native-x2", "bf16 x2")
    assert Cell.model_validate_json(CELL.model_dump_json(exclude={"ranks"})) == CELL, "an older record"


def test_shard_exists_and_cast_has_times_or_a_reason():
    assert str(Shard(index=3, count=3)) == "3 of 3"
    with pytest.raises(ValidationError, match="shard 4 of 3 does not exist"):
        Shard(index=4, count=3)


def test_checks_are_known_as_text_without_torch():
    """``python docs/reference.py`` writes what the files of checks declare."""
    assert FILE.read_text() == runpy.run_path(str(ROOT / "docs" / "reference.py"))["checks_text"]()
    assert all(CHECKS[name].advice == check.advice for name, check in declared().items())


@pytest.mark.parametrize("check", ["twins", "suites/numerics/test_twins"])
def test_command_of_a_release_check_runs_it(check):
    said = command([made("fail", check="gemm"), made("error", check=check)], Evidence())
    assert said == "pytest suites/numerics --recipe te-current --model tiny --execution native --release"


def test_each_check_has_a_test_in_its_suite():
    """Else --release, shards and commands would not find it."""
    tests = {
        (f"suites/{path.parent.name}", function.name): ast.unparse(function)
        for path in (ROOT / "suites").rglob("test_*.py")
        for function in ast.parse(path.read_text()).body
        if isinstance(function, ast.FunctionDef)
    }
    own = {key: found[1] for key, code in tests.items() if (found := re.search(r"numerics\('([^']+)'", code))}
    assert own == {(check.suite, check.function): check.name for check in declared().values()}
    assert tests.keys() == {(info.suite, info.function) for info in CHECKS.values()}
