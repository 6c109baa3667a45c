"""The CSV of a report: one row for each judged time, with every digit, and texts that stay texts."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import gemm_records
import pytest
import timings
from fp8parity.cli import main
from fp8parity.judging import gemms, speed
from fp8parity.judging.verdict import GEMMS, Verdict
from fp8parity.records.schema import AnyRecord, Throughput
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import RENDERERS
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report
from sessions import GOLDEN

WATTS = timings.calm_but(watts=[500.0, 400.0])
STEP = timings.made(watch=WATTS)


def judged(record: Throughput) -> Verdict:
    return speed.judge(record, None, timings.ROW, timings.THRESHOLDS)


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def table(verdicts: list[Verdict], *records: AnyRecord) -> list[dict[str, str]]:
    text = RENDERERS[".csv"](Report(verdicts, {}, [], "m", Evidence(records)))
    return read(text)


def test_a_step_has_every_number_with_every_digit():
    [row] = table([judged(STEP)], STEP)
    found = speed.measured(STEP)
    assert [row[name] for name in ("kind", "gpu", "model", "recipe", "execution", "ranks", "corpus", "content", "mode", "verdict")] == [
        "step", "NVIDIA Made Up", "base", "te-current", "native", "1", "topics", "training-step", "compiled", "no-golden",
    ]  # fmt: skip
    wanted = {
        "speed_up_ratio": found.ratio, "speed_up_low_ratio": found.low, "speed_up_high_ratio": found.high,
        "bf16_tokens_per_second": found.bf16_tokens_per_second, "tokens_per_second": found.tokens_per_second,
        "bf16_mfu_share": found.bf16_mfu, "mfu_share": found.mfu, "bf16_memory_bytes": 20 * 2**30, "memory_bytes": 18 * 2**30,
    }  # fmt: skip
    assert {name: float(row[name]) for name in wanted} == wanted
    assert float(row["bf16_millijoules_per_token"]) == pytest.approx(1e3 * 500 * 0.4 / (2 * 16384))
    assert row["worth_ratio"] == row["more_tokens_share"] == ""


def test_gemms_have_a_row_for_each_way_to_time_them():
    record = gemm_records.made()
    kernel, training = table([gemms.judge(record, None, gemm_records.ROW, timings.THRESHOLDS)], record)
    assert [(r["kind"], r["content"], r["mode"]) for r in (kernel, training)] == [
        ("GEMMs", "gemms-31x512", m) for m in ("kernel", "training")
    ]
    for row, ratio in ((kernel, 1.9), (training, 1.6)):
        low, middle, high = (float(row[f"speed_up{part}_ratio"]) for part in ("_low", "", "_high"))
        assert low < middle < high and middle == pytest.approx(ratio, rel=0.001)
    assert kernel["gpu"] == gemm_records.GPU and kernel["tokens_per_second"] == ""


def test_unusable_times_have_a_row_without_numbers():
    """Otherwise the table would look whole."""
    record = gemm_records.changed(
        gemm_records.made(), "o wgrad training", bf16_seconds=[], recipe_seconds=[], failed="no algorithm"
    )
    few = STEP.model_copy(update={"bf16_seconds": [1.0], "recipe_seconds": [1.0]})
    found = table([judged(few), gemms.judge(record, None, gemm_records.ROW, timings.THRESHOLDS)], few, record)
    assert [(r["kind"], r["mode"], r["verdict"]) for r in found] == [
        ("step", "", "error"),
        ("GEMMs", "kernel", "error"),
    ]
    assert found[0]["speed_up_ratio"] == "" and "no algorithm" in found[1]["headline"]
    lost = Verdict(cell=STEP.cell, check=GEMMS, status="error", headline="lost")
    assert [r["verdict"] for r in table([lost])] == ["error"]


def test_judge_writes_one_beside_other_reports(tmp_path: Path, capsys):
    write_json(tmp_path / "set" / name_of(STEP), STEP)
    arguments = ["judge", str(tmp_path / "set"), "--golden-dir", str(GOLDEN)]
    assert main([*arguments, "--report", str(tmp_path / "x.csv"), "--report", str(tmp_path / "x.json")]) == 1
    [row] = read((tmp_path / "x.csv").read_text())
    assert float(row["speed_up_ratio"]) == speed.measured(STEP).ratio
    (tmp_path / "file").write_text("")
    assert main([*arguments, "--report", str(tmp_path / "file" / "x.csv")]) == 1
    assert "x.csv could not be written" in capsys.readouterr().err
