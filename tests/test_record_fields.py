"""The fields of stored data: the value of a field that an older file lacks, the edges of what a field takes, and the words of files."""

from __future__ import annotations

from enum import StrEnum
from math import inf, nan

import gemm_records
import pytest
import reports
import timings
from fp8parity.records.cell import Cell, Execution, Mode, Strict
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes, TimedCast, TimedGemm
from fp8parity.records.manifest import Selected, Shard
from fp8parity.records.provenance import HIDDEN, Provenance
from fp8parity.records.schema import (
    AnyRecord,
    Measurements,
    NonFinite,
    Probed,
    Throughput,
    TimeSplit,
    Trajectory,
)
from fp8parity.records.storage import first_error
from fp8parity.records.times import (
    BlockShape,
    Category,
    DeviceProfile,
    Kernel,
    LinearTime,
    Part,
    PartTime,
    Split,
    Watch,
)
from pydantic import TypeAdapter, ValidationError

LARGEST = 2**63 - 1
CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE)
GEMM = gemm_records.made().gemms[0]
COPY = PartTime(part=Part.COPY, form="eager", seconds=1.0, low=1.0, high=1.0)
BLOCK = BlockShape(dim=8, hidden=16, heads=2, kv_heads=1, sequence=4, micro_batch=1)
SIDE = Split(seconds=1.0, categories={Category.GEMM: 1.0})
HERE = reports.provenance()
CHECK = Measurements(cell=CELL, check="gemm", values=[], provenance=HERE, session="s")
SPLIT = TimeSplit(cell=CELL, mode=Mode.EAGER, tokens=1, bf16=SIDE, recipe=SIDE, provenance=HERE, session="s")
PROFILE = DeviceProfile(cell=CELL, memory=1, peak_flops=1.0, times=[COPY], provenance=HERE, session="s")
COUNT = [0, LARGEST], [-1, LARGEST + 1]
POSITIVE = [1, LARGEST], [0, LARGEST + 1]
SECONDS = [0.0, 1e9], [-1e-9, inf, nan]
QUANTITY = [1e-300, 1e9], [0.0, inf, nan]
FINITE = [-1.0, 0.0], [inf, -inf, nan]
TIMES = [[1e-9]], [[], [0.0]]
NAME = ["a b", "x" * 150], ["", "x" * 151, *(f"a{c}b" for c in "/\\<>\x00\x1f\n\x7f\u2028\u2029")]


@pytest.mark.parametrize(
    ("model", "field", "values"),
    [
        (Cell, "model", NAME),
        (Cell, "recipe", NAME),
        (
            Cell,
            "corpus",
            (["/a/<b>\\", "x" * 1000], ["", "x" * 1001, *(f"a{c}b" for c in "\x00\x1f\n\x7f\u2028\u2029")]),
        ),
        (Cell, "ranks", POSITIVE),
        (NonFinite, "step", COUNT),
        (Probed, "step", COUNT),
        (Probed, "sqnr", ([-inf, inf, 25.0], ["a"])),
        (Trajectory, "seed", COUNT),
        (Trajectory, "variant", (["", "replica1"], ["a/b"])),
        (Trajectory, "floor", FINITE),
        (Trajectory, "unigram", FINITE),
        (Trajectory, "bigram", FINITE),
        (Trajectory, "seconds", SECONDS),
        (Trajectory, "step_seconds", SECONDS),
        (Throughput, "tokens", POSITIVE),
        (Throughput, "bf16_seconds", TIMES),
        (Throughput, "recipe_seconds", TIMES),
        (Throughput, "flops_per_token", QUANTITY),
        (LinearTime, "fqns", ([("a",)], [()])),
        (LinearTime, "bf16_seconds", TIMES),
        (LinearTime, "recipe_seconds", TIMES),
        (Kernel, "name", (["k" * 200], ["k" * 201])),
        (BlockShape, "dim", POSITIVE),
        (Watch, "power_capped", ([None, 0.0, 1.0], [-1e-9, 1.000001])),
        (GemmTimes, "gemms", ([[GEMM]], [[]])),
        (GemmTimes, "tool", (["", "deepgemm"], ["a/b"])),
        (TimedGemm, "error", ([None, 0.0], [-1e-9])),
        (TimedGemm, "part", (["layer", "model"], ["head"])),
        (TimedGemm, "gemm", (["fprop", "dgrad", "wgrad"], ["y"])),
        (TimedCast, "operand", (["x", "w", "dy"], ["y"])),
        (DeviceProfile, "times", ([[COPY]], [[]])),
        (Provenance, "capability", ([None, [9, 0]], [[9], [9, 0, 0]])),
        (Selected, "outcome", (["passed", "failed", "xfailed", "skipped", "not run"], ["xpassed"])),
    ],
)
def test_a_field_takes_these_values_and_no_others(
    model: type[Strict], field: str, values: tuple[list[object], list[object]]
):
    adapter: TypeAdapter[object] = TypeAdapter(model.model_fields[field].rebuild_annotation())
    for value in values[0]:
        assert adapter.validate_python(value) == value
    for value in values[1]:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (Execution, "native fused emulated core"),
        (Mode, "eager compiled graphed compiled-graphed"),
        (GemmMode, "kernel training"),
        (Accumulation, "split fast none"),
        (Category, "gemm quantize attention norm elementwise optimizer loss other idle"),
        (Part, "copy block-products block-attention block-rest attention ends optimizer shell launch"),
    ],
)
def test_the_words_of_files_never_change(words: type[StrEnum], names: str):
    assert " ".join(words) == names


def test_an_unknown_word_names_the_most_similar():
    with pytest.raises(ValueError, match=r"unknown execution 'nativ': did you mean native\?"):
        Execution("nativ")


@pytest.mark.parametrize(
    ("record", "changes", "content"),
    [
        (timings.made(), {}, "training-step"),
        (timings.made(), {"variant": "length 512"}, "training-step-length-512"),
        (timings.made(), {"block": BLOCK}, "block"),
        (timings.made(), {"block": BLOCK, "variant": "graphed"}, "block-graphed"),
        (SPLIT, {}, "training-step-split"),
        (SPLIT, {"block": BLOCK, "variant": "a b"}, "block-split-a-b"),
        (CHECK, {}, "gemm"),
        (CHECK, {"variant": "planted"}, "gemm-planted"),
        (PROFILE, {}, "profile"),
        (gemm_records.made(), {}, "gemms-31x512"),
    ],
)
def test_a_record_says_which_part_of_its_cell_it_holds(record: AnyRecord, changes: dict[str, object], content: str):
    changed = record.model_copy(update=changes)
    assert changed.content == content
    assert type(record).model_validate_json(changed.model_dump_json()) == changed


def test_an_unknown_field_is_refused():
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Cell.model_validate(CELL.model_dump() | {"extra": 1})


def test_a_shard_is_one_of_those_that_exist():
    assert str(Shard(index=3, count=3)) == "3 of 3"
    with pytest.raises(ValidationError) as error:
        Shard(index=4, count=3)
    assert first_error(error.value) == "shard 4 of 3 does not exist"


def test_the_flops_of_a_gemm_are_two_for_each_product_of_each_group():
    assert GEMM.model_copy(update={"m": 3, "n": 5, "k": 7, "groups": 11}).flops == 2310.0


@pytest.mark.parametrize("given", [{}, {"seconds": [1.0], "failed": "no kernel"}])
def test_a_cast_has_times_or_a_reason(given):
    fields = {"linear": "up", "operand": "dy", "before": "dgrad", "directions": 2, "elements": 1}
    assert TimedCast.model_validate(fields | {"seconds": [1.0]}).failed == ""
    with pytest.raises(ValidationError, match="up dy: a cast has times, or the reason why it failed"):
        TimedCast.model_validate(fields | given)


def test_gemms_into_main_gradients_are_another_record():
    made = gemm_records.made()
    assert gemm_records.main_grads(made).model_copy(update={"tool": "x"}).content == "gemms-31x512-main_grads-x"


def test_the_line_of_a_machine_names_the_packages_that_decide():
    packages = {"torch": "2.13", "numpy": "2", "transformer-engine": "2.9", "torchao": "0.18"}
    made = reports.provenance(device="NVIDIA H200").model_copy(update={"packages": packages})
    assert made.line() == "torch 2.13, transformer-engine 2.9, torchao 0.18, NVIDIA H200"


def test_settings_are_variables_without_paths_and_known_ones_have_a_value():
    """Records of older versions hold a value that may be a secret with these words before its hash."""
    held = {"NVTE_X": "1", "A_DIR": "/a", "B_PATH": "/b", "TOKEN": "set, SHA-256 0123", "E": ""}
    made = HERE.model_copy(update={"environment": held})
    assert made.settings == {"NVTE_X": "1", "TOKEN": "set, SHA-256 0123", "E": ""}
    assert made.known_settings == {"NVTE_X": "1", "E": ""}
    assert HIDDEN == "set, SHA-256 "


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("commit", "x"),
        ("packages", {}),
        ("device", "x"),
        ("driver", "x"),
        ("cuda", "x"),
        ("environment", {"A": "b"}),
        ("dirty", True),
    ],
)
def test_a_run_is_like_one_of_its_own_code_and_machine_only(field, value):
    clean = HERE.model_copy(update={"dirty": False})
    assert clean.alike(clean.model_copy(update={"threads": 99, "environment": HERE.environment | {"A_PATH": "/a"}}))
    other = clean.model_copy(update={field: value})
    assert not clean.alike(other) and not other.alike(clean)
