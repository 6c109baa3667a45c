"""How sets are grouped by machine and merged: what makes a machine, what equal results may differ in, and the files of a merged set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gemm_records
import pytest
import timings
import trajectories
from fp8parity.records.cell import DEFAULT_CORPUS, DEFAULT_MODEL, TRAINED_MODEL, Cell, Execution, Mode
from fp8parity.records.schema import Measurement, Measurements, TimeSplit
from fp8parity.records.sets import EnvironmentKey, load, machines, merge, save
from fp8parity.records.storage import name_of
from fp8parity.records.times import Category, DeviceProfile, Part, PartTime, Split

RUN = trajectories.made("te-current", 3)
HERE = RUN.provenance
SIDE = Split(seconds=1.0, categories={Category.GEMM: 1.0})
CHECK = Measurements(cell=RUN.cell, check="gemm", values=[Measurement("sqnr", "w", 30.0)], provenance=HERE, session="s")
SPLIT = TimeSplit(cell=RUN.cell, mode=Mode.EAGER, tokens=1, bf16=SIDE, recipe=SIDE, provenance=HERE, session="s")
COPY = PartTime(part=Part.COPY, form="eager", seconds=1.0, low=1.0, high=1.0)
PROFILE = DeviceProfile(cell=RUN.cell, memory=1, peak_flops=1.0, times=[COPY], provenance=HERE, session="s")


def test_the_facts_of_a_machine_are_its_versions_and_settings():
    made = HERE.model_copy(update={"cuda": "13.0", "driver": "580", "environment": {"NVTE_X": "1"}})
    key = EnvironmentKey.of(RUN.model_copy(update={"provenance": made}))
    assert key.facts == {"torch": "0", "CUDA": "13.0", "driver": "580", "NVTE_X": "1"}


def test_each_kind_of_record_has_its_place():
    timed, gemms = timings.made(provenance=HERE), gemm_records.made(provenance=HERE)
    planted = RUN.model_copy(update={"variant": "replica1"})
    [found] = machines([RUN, CHECK, timed, SPLIT, gemms, PROFILE, planted])
    assert (found.runs, found.checks) == ({RUN.cell: [RUN]}, {(RUN.cell, "gemm"): CHECK})
    assert (found.timings, found.splits) == (
        {(timed.cell, "training-step"): timed},
        {(RUN.cell, "training-step-split"): SPLIT},
    )
    assert (found.gemms, found.profiles, found.variants) == (
        {(gemms.cell, "gemms-31x512"): gemms},
        [PROFILE],
        [planted],
    )
    assert found.records == [RUN, planted, CHECK, timed, SPLIT, gemms, PROFILE]


@pytest.mark.parametrize(
    "changes",
    [
        {"partial": False},
        {"session": "t"},
        {"seconds": 9.0},
        {"step_seconds": 9.0},
        {"peak_memory": 9},
        {"recorded": "2026-01-01"},
        {"provenance": HERE.model_copy(update={"commit": "x", "threads": 9})},
    ],
)
def test_circumstances_make_no_other_result(changes: dict[str, Any]):
    assert merge([(Path("a"), RUN), (Path("b"), RUN.model_copy(update=changes))]) == [RUN]


def test_notes_make_no_other_result():
    assert merge([(Path("a"), CHECK), (Path("b"), CHECK.model_copy(update={"notes": ["x"]}))]) == [CHECK]


def test_a_contradiction_names_both_files_and_every_field():
    other = RUN.model_copy(update={"final_weights": "x", "parameters": 2})
    with pytest.raises(ValueError) as error:  # noqa: PT011
        merge([(Path("a"), RUN), (Path("b"), other)])
    assert str(error.value) == (
        "a and b contradict each other: te-current-nano-emulated seed3 on d with the same packages, but another parameters, final_weights; "
        "keep the correct run and remove the other"
    )


def test_of_two_records_with_one_name_the_later_gets_a_hash(tmp_path):
    control = trajectories.made()
    other = control.model_copy(update={"session": "t", "final_weights": "x"})
    names = save([control, RUN, other], tmp_path / "set")
    assert names[1:] == [name_of(control), name_of(RUN)]
    assert len(names[0]) == len(name_of(control)) + 9 and names[0].startswith("bf16-nano-native-topics-seed0-")
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == names
    assert sorted(r.session for r in load([tmp_path / "set"])) == ["s", "s", "t"]


@pytest.mark.parametrize(
    ("held", "out", "words"),
    [
        ("out/a.json", "out", "holds records already"),
        ("out/a.txt", "out", "is not empty"),
        ("out.zip", "out.zip", "holds records already"),
    ],
)
def test_a_merge_writes_over_nothing(tmp_path, held, out, words):
    (tmp_path / held).parent.mkdir(exist_ok=True)
    (tmp_path / held).write_text("")
    with pytest.raises(ValueError) as error:  # noqa: PT011
        save([RUN], tmp_path / out)
    assert str(error.value) == f"{tmp_path / out} {words}; choose a new folder or .zip file"


@pytest.mark.parametrize(("ranks", "end"), [(1, ""), (2, "x2"), (3, "x3")])
def test_a_cell_of_several_ranks_says_so(ranks, end):
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, ranks=ranks)
    assert cell.id == "te-current-tiny-native" + (f"-{end}" if end else "")
    assert cell.label == "te-current native" + (f" {end}" if end else "")


@pytest.mark.parametrize(
    ("mode", "without"),
    [(Mode.EAGER, "eager"), (Mode.COMPILED, "eager"), (Mode.GRAPHED, "graphed"), (Mode.COMPILED_GRAPHED, "graphed")],
)
def test_a_mode_without_the_compiler_keeps_its_graph(mode, without):
    assert mode.without_compiler == without


def test_the_models_and_the_corpus_if_the_user_names_none():
    """Files of older versions hold these names."""
    assert (DEFAULT_MODEL, TRAINED_MODEL, DEFAULT_CORPUS) == ("tiny", "micro", "topics")


def test_a_copy_shares_what_it_holds_unless_it_is_deep():
    assert RUN.model_copy().loss is RUN.loss
    assert RUN.model_copy(deep=True).loss is not RUN.loss
