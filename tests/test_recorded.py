"""``fp8parity gemm --from``: the tables of records, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gemm_records
import pytest
from fp8parity import cli
from fp8parity.cli import gemm
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import timings
from timings import made as timed


@pytest.fixture
def show(tmp_path, capsys, monkeypatch) -> Callable[..., tuple[int, str, str]]:
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


def test_gemms_of_a_set_are_shown_and_written(show):
    record = gemm_records.made("llama3-8b")
    code, out, _ = show([record], "gemm", "--csv", "g.csv", "--json", "g.json")
    assert (code, out) == (0, f"{gemm.table(record)}\n")
    assert Path("g.csv").read_text() == timings.GEMM_RENDERERS["csv"]([record]) and Path(
        "g.json"
    ).read_text() == timings.GEMM_RENDERERS["json"]([record])
    assert not Path(".parity").exists()


def test_a_set_without_such_records_is_refused(show):
    assert show([timed()], "gemm") == (2, "", "fp8parity: NVIDIA Made Up: no record of fp8parity gemm\n")


@pytest.mark.parametrize(("given", "named"), [(["llama3-8b"], "the model"), (["--pairs", "7"], "--pairs")])
def test_timing_arguments_are_refused_with_from(show, given, named):
    """It would be ignored."""
    code, out, err = show([gemm_records.made()], "gemm", *given)
    assert (code, out) == (2, "")
    assert err == f"fp8parity: --from shows what is on record, and times nothing; leave out {named}\n"


def test_without_a_set_a_timing_needs_its_model(show):
    code, out, err = show([], "gemm", given=False)
    assert (code, out) == (2, "")
    assert err == "fp8parity: give the model to time something, or --from SET to show what is on record\n"
