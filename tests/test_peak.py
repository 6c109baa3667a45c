"""The peak by which MFU is counted: of a data sheet, or measured where none is known."""

from __future__ import annotations

import csv
import io

import pytest
import reports
import timings
import torch
from fp8parity.judging import speed
from fp8parity.report import RENDERERS, timed
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report
from fp8parity.training import peak, provenance

SIDE = 64


@pytest.fixture
def named(monkeypatch):
    """Names the device, and lets a product of two matrices take 2 to 5 microseconds."""
    sides: list[int] = []

    def times(work, device):
        sides.append(work().shape[0])
        return [5e-6, 2e-6, 3e-6]

    monkeypatch.setattr(peak, "seconds", times)
    return lambda name: (monkeypatch.setattr(provenance, "device_name", lambda device: name), sides)[1]


def test_a_data_sheet_counts_before_a_measurement(named):
    sides = named("NVIDIA H200")
    assert peak.of(torch.device("cuda")) == (989e12, False)
    assert peak.of_sheet(timings.GPU) is None and sides == []


def test_the_best_rate_of_a_product_is_the_peak():
    device = torch.device("cpu")
    assert peak.measured(device, SIDE) > 0
    assert peak.SIDE == 8192


def test_the_fastest_product_counts(named):
    sides = named(timings.GPU)
    assert peak.measured(torch.device("cpu"), SIDE) == pytest.approx(2 * SIDE**3 / 2e-6)
    assert sides == [SIDE]


def test_a_gpu_without_a_data_sheet_is_measured(named, monkeypatch):
    named(timings.GPU)
    monkeypatch.setattr(peak, "measured", lambda device: 7e14)
    assert peak.of(torch.device("cuda")) == (7e14, True)


def test_a_cpu_has_no_peak(named):
    sides = named("AMD EPYC")
    assert peak.of(torch.device("cpu")) == (None, False)
    assert sides == []


@pytest.mark.parametrize(
    ("measured", "shown", "column"), [(True, "% of the measured peak", "measured"), (False, "%", "data sheet")]
)
def test_a_report_says_of_which_peak_the_mfu_is(measured, shown, column):
    record = timings.made(peak_measured=measured)
    verdict = speed.judge(record, None, timings.ROW)
    report = Report([verdict], {}, [], "m", Evidence([record]))
    mfu = reports.tables(report)["Speed and memory"].rows[0][5]
    assert mfu.endswith(shown) and mfu.count("%") == 2
    [line] = csv.DictReader(io.StringIO(RENDERERS[".csv"](report)))
    assert line["mfu_peak"] == column


def test_without_a_peak_there_is_no_mfu():
    record = timings.made(peak_flops=None)
    [row] = timed.rows(Report([speed.judge(record, None, timings.ROW)], {}, [], "m", Evidence([record])))
    assert (row.mfu_share, row.mfu_peak) == (None, "")
