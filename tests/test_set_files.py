"""The files of a set: their names, their text, the sentence about each fault of a file, and the manifests beside the records."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import trajectories
from fp8parity.records import manifest
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Manifest, Selected, too_old
from fp8parity.records.storage import (
    checked,
    checksum,
    file_name,
    gpu_slug,
    load_record,
    load_records,
    name_of,
    read_json,
    slug,
    to_json,
    write_json,
)

RUN = trajectories.made("te-current", 3)
NAME = "te-current-nano-emulated-topics-seed3.json"


def content(**changes: Any) -> dict[str, Any]:
    """What the file of a run holds, with other values and with a checksum that fits."""
    data = {**json.loads(RUN.model_dump_json()), **changes}
    return data | {"checksum": checksum(data)}


def said(path: Path, data: object) -> str:
    """Why a file with this content is refused, without its path."""
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_record(path)
    return str(error.value).removeprefix(f"{path}")


def refused(folder: Path) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        load_records(folder)
    return str(error.value)


def test_the_checksum_of_a_file_of_an_older_version_still_fits():
    """It is the SHA-256 of the compact JSON with sorted keys, without the checksum itself."""
    hashed = "721ef82f2d6c0997bffb7a8ab3f40f8fb45b0b52ce2af3afa6b0f05efbdc317f"
    assert checksum({"b": [1, 2], "a": "x"}) == checksum({"a": "x", "checksum": "?", "b": [1, 2]}) == hashed


def test_a_file_has_one_value_a_line():
    text = to_json(Cell(model="m", recipe="r", execution=Execution.CORE))
    assert text.splitlines()[:3] == ["{", ' "model": "m",', ' "recipe": "r",']
    assert checked(text, Path("x")) == {
        "model": "m",
        "recipe": "r",
        "execution": "core",
        "corpus": "topics",
        "ranks": 1,
    }


@pytest.mark.parametrize("text", ["{}", "[]", "3", '["checksum"]', '"checksum"'])
def test_a_file_without_a_checksum_is_not_ours(tmp_path, text):
    assert said(tmp_path / "x.json", text) == ": no checksum; fp8parity did not write this file"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, "its schema_version is '2', and this fp8parity reads 3"),
        ({"schema_version": True}, "its schema_version is 'True', and this fp8parity reads 3"),
        ({"schema_version": "x" * 50}, f"its schema_version is '{'x' * 40}', and this fp8parity reads 3"),
        ({"loss": []}, "key trajectory: grad_norm holds 12 values, and loss 0"),
        ({"cell": {"model": "m"}}, "key trajectory.cell.recipe: Field required"),
        ({"seed": -1}, "key trajectory.seed: Input should be greater than or equal to 0"),
        ({"validation": [[5, 1.0], [5, 1.0]]}, "key trajectory: the steps of its validations do not rise: [5, 5]"),
        ({"validation": [[12, 1.0]]}, "key trajectory: the last validation is at step 12 of 12; steps count from 0"),
        ({"schedule": {"steps": 0}}, "key trajectory: schedule.steps is 0; it is a number of steps, from 1 to 10000000"),
        ({"schedule": {"steps": 10_000_001}}, "key trajectory: schedule.steps is 10000001; it is a number of steps, from 1 to 10000000"),
        ({"schedule": {"steps": 12}}, "key trajectory: schedule.tail is None; it is a number of steps, from 1 to 10000000"),
        ({"schedule": {"steps": 12, "tail": 13}}, "key trajectory: schedule.tail is 13, and the schedule has 12 steps"),
        ({"schedule": {"steps": 11, "tail": 4}}, "key trajectory: loss holds 12 values, and the schedule has 11 steps"),
        ({"schedule": {"steps": 13, "tail": 4}}, "key trajectory: loss holds 12 values, and the schedule has 13 steps"),
        ({"validation": []}, "key trajectory: validation is empty, and the run did not stop early"),
    ],
)  # fmt: skip
def test_the_first_fault_of_a_record_is_named(tmp_path, changes, words):
    assert said(tmp_path / "x.json", content(**changes)) == f": {words}"


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": {"steps": 12, "tail": 12}},
        {"schedule": {"steps": 12, "tail": 1}, "validation": [[0, 1.0], [11, 1.0]]},
        {"schedule": {"steps": 10_000_000, "tail": 1}, "non_finite": {"step": 11, "where": "loss"}, "validation": []},
    ],
)
def test_a_record_on_the_edge_is_read(tmp_path, changes):
    (tmp_path / NAME).write_text(json.dumps(content(**changes)))
    [found] = load_records(tmp_path)
    assert json.loads(found.model_dump_json())["schedule"] == changes["schedule"]


def test_an_edited_and_a_nested_file_are_named(tmp_path):
    assert (
        said(tmp_path / "x.json", content() | {"seed": 4})
        == ": its checksum does not match its content; it was edited or damaged"
    )
    assert said(tmp_path / "x.json", "[" * 100_000) == ": its values are nested too deeply"


def test_records_of_a_set_share_what_is_equal(tmp_path):
    """A set of 10,000 records has a few machines and cells, also if an older file has their keys in another order."""
    for seed in (1, 2):
        data = content(seed=seed)
        data["provenance"] = dict(sorted(data["provenance"].items(), reverse=seed == 2))
        (tmp_path / f"{NAME[:-6]}{seed}.json").write_text(json.dumps(data))
    one, two = load_records(tmp_path)
    assert one.provenance is two.provenance and one.cell is two.cell
    assert one.provenance == RUN.provenance and one.cell == RUN.cell


def test_names_of_files():
    cell = Cell(model="m", recipe="r", execution=Execution.CORE, corpus="text:/a.b")
    assert file_name(cell, "gemm") == "r-m-core-text__a_b-gemm.json"
    assert (name_of(RUN), name_of(trajectories.made(seed=1, variant="one two"))) == (
        NAME,
        "bf16-nano-native-topics-seed1-one-two.json",
    )
    assert (slug("Ä b/1.c"), gpu_slug("NVIDIA H200")) == ("Ä_b_1_c", "nvidia-h200")


@pytest.mark.parametrize("name", [NAME, NAME.replace(".json", "-0123abcd.json")])
def test_a_file_has_the_name_of_its_record_and_maybe_a_hash(tmp_path, name):
    write_json(tmp_path / name, RUN)
    assert load_records(tmp_path) == [RUN]


@pytest.mark.parametrize("name", ["x.json", NAME.replace("seed3", "seed4"), NAME.replace(".json", "-0123ABCD.json")])
def test_a_file_under_another_name_is_refused(tmp_path, name):
    write_json(tmp_path / name, RUN)
    assert refused(tmp_path) == f"{tmp_path / name} holds te-current-nano-emulated seed3; name it {NAME} or remove it"


def test_a_set_without_records_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    manifest.write(tmp_path, note())
    assert refused(tmp_path) == f"{tmp_path} holds no records"


def test_a_zip_is_read_like_a_folder_and_its_files_are_sorted(tmp_path):
    runs = [trajectories.made(seed=s) for s in (2, 0, 1)]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for run in runs:
            write_json(tmp_path / "a" / name_of(run), run)
            archive.writestr(name_of(run), to_json(run))
        archive.writestr(note().name, to_json(note()))
        archive.writestr("notes.txt", "")
    manifest.write(tmp_path / "a", note())
    for path in (tmp_path / "a", tmp_path / "a.zip"):
        assert load_records(path) == sorted(runs, key=lambda r: r.seed)
        assert manifest.load([path]) == [note()]


def note(**changes: Any) -> Manifest:
    made = Manifest(
        session="a/1", options=[], started="s", ended="e", status="ok", provenance=RUN.provenance, selected=[]
    )
    return made.model_copy(update=changes)


def test_two_manifests_of_one_session_are_equal_or_refused(tmp_path):
    files = [
        manifest.write(tmp_path / name, note(status=status))
        for name, status in (("a", "ok"), ("b", "ok"), ("c", "failed"))
    ]
    assert files[0].name == "manifest-a_1.json"
    assert manifest.load([tmp_path / "a", tmp_path / "b"]) == [note()]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        manifest.load([tmp_path / "a", tmp_path / "b", tmp_path / "c"])
    words = "are different manifests of one session; keep the correct one and remove the other"
    assert str(error.value) == f"{files[0]} and {files[2]} {words}"


@pytest.mark.parametrize(
    ("outcome", "reason", "needs"),
    [
        ("skipped", f"Skipped: {too_old('torchao', '0.18', '0.17')}", "torchao 0.18 or later"),
        ("skipped", "needs sm_100", ""),
        ("passed", too_old("torchao", "0.18", "0.17"), ""),
    ],
)
def test_a_test_that_was_skipped_for_an_old_package_says_what_it_needs(outcome, reason, needs):
    assert too_old("torchao", "0.18", "0.17") == "needs torchao 0.18 or later; 0.17 is installed"
    assert Selected(cell="c", test="t", outcome=outcome, reason=reason).needs == needs


def test_a_file_comes_back_without_its_checksum(tmp_path):
    assert read_json(write_json(tmp_path / "a" / "x.json", RUN)) == json.loads(RUN.model_dump_json())
