"""``fp8parity gemm --from`` and ``fp8parity split --from``: the tables of records, without a GPU."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import gemm_records
import pytest
import reports
from fp8parity import cli
from fp8parity.cli import blocks, gemm
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import timings
from timings import KV, SHAPE, Q
from timings import made as timed
from timings import split as split_of

SPLIT = split_of(Q, KV)
OTHER = split_of(Q).model_copy(update={"variant": "eager", "provenance": reports.provenance(device="NVIDIA Other")})
BLOCKS = [timed(ratio, block=SHAPE, variant=name) for ratio, name in ((1.2, ""), (1.25, "without k_proj v_proj"))]


@pytest.fixture
def run(tmp_path, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
    """It writes a set of these records, and runs a command with it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fp8parity.training.hardware.detect", lambda requested: pytest.fail("no GPU is looked for"))

    def call(records: list[AnyRecord], command: str, *arguments: str, given: bool = True) -> tuple[int, str, str]:
        for r in records:
            write_json(tmp_path / r.provenance.device / name_of(r), r)
        sets = sorted({r.provenance.device for r in records})
        code = cli.main([command, *arguments, *(["--from", *sets] if given else [])])
        return code, *capsys.readouterr()

    return call


def test_gemms_of_a_set_are_shown_and_written(run):
    record = gemm_records.made("llama3-8b")
    code, out, _ = run([record], "gemm", "--csv", "g.csv", "--json", "g.json")
    assert (code, out) == (0, f"{gemm.table(record)}\n")
    assert Path("g.csv").read_text() == timings.GEMM_RENDERERS["csv"]([record]) and Path(
        "g.json"
    ).read_text() == timings.GEMM_RENDERERS["json"]([record])
    assert not Path(".parity").exists()


def test_splits_of_several_sets_are_all_shown(run):
    code, out, _ = run([SPLIT, OTHER], "split", "--csv", "s.csv", "--json", "s.json")
    assert code == 0
    assert out.split("\n\n") == [
        f"NVIDIA Made Up: training-step-split\n{blocks.table(SPLIT)}",
        f"NVIDIA Other: training-step-split-eager\n{blocks.table(OTHER)}\n",
    ]
    assert [r["device"] for r in csv.DictReader(io.StringIO(Path("s.csv").read_text()))] == ["NVIDIA Made Up"] * 3 + [
        "NVIDIA Other"
    ] * 3
    assert [s["filter"] is None for s in json.loads(Path("s.json").read_text())] == [False, True]


def test_a_measured_filter_is_shown_with_its_split(run):
    _, out, _ = run([SPLIT, *BLOCKS], "split")
    line = " ".join(out.split("+2.0%")[1].split())
    assert line.startswith("a block, without k_proj v_proj: 1.250x [") and "measured gain +4.2% [" in line
    assert max(map(len, out.splitlines())) <= 80


def test_blocks_of_another_machine_do_not_count(run):
    there = [b.model_copy(update={"provenance": reports.provenance(device="NVIDIA Other")}) for b in BLOCKS]
    assert "measured gain" not in run([SPLIT, *there], "split")[1]


@pytest.mark.parametrize("command", ["gemm", "split"])
def test_a_set_without_such_records_is_refused(run, command):
    assert run([BLOCKS[0]], command) == (2, "", f"fp8parity: NVIDIA Made Up: no record of fp8parity {command}\n")


TIMING = [("gemm", ["llama3-8b"]), ("gemm", ["--pairs", "7"]), ("split", ["1b"]), ("split", ["--measure-filter"])]


@pytest.mark.parametrize(("command", "given"), TIMING)
def test_timing_arguments_are_refused_with_from(run, command, given):
    """It would be ignored."""
    named = given[0] if given[0].startswith("-") else "the model"
    code, out, err = run([SPLIT, gemm_records.made()], command, *given)
    assert (code, out) == (2, "")
    assert err == f"fp8parity: --from shows what is on record, and times nothing; leave out {named}\n"


@pytest.mark.parametrize(
    ("arguments", "missing"),
    [(["gemm"], "the model"), (["split"], "the model and --recipe"), (["split", "1b"], "--recipe")],
)
def test_without_a_set_a_timing_needs_its_model(run, arguments, missing):
    code, out, err = run([], *arguments, given=False)
    assert (code, out) == (2, "")
    assert err == f"fp8parity: give {missing} to time something, or --from SET to show what is on record\n"
