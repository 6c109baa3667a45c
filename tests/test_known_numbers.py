"""A known failure is recognized by its numbers: check, metric, place and range. Anything else beside them stays red."""

from __future__ import annotations

import datetime
import math
from pathlib import Path

import numpy as np
import pytest
from fp8parity.judging.policy import known_failures
from fp8parity.judging.policy.known_failures import KnownFailures
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.verdict import Failing, NumericsDetail, Status, Verdict
from fp8parity.records.cell import Cell, Execution
from paired import SEEDS, STEPS, Make, at, judged

NAN = math.nan
ENTRY = """
[[known]]
check = "{check}"
status = "{status}"
{named}
link = "https://example.org/issues/7"
expires = 2999-01-01
why = "the scale is applied twice"
"""
SQNR = 'number = [{ metric = "fprop sqnr", where = ["uniform", "outliers"], low = 20, high = 22 }]'


def entries(folder: Path, named: str, check: str = "gemm", status: str = "fail") -> KnownFailures:
    (folder / known_failures.FILE).write_text(ENTRY.format(check=check, status=status, named=named))
    return known_failures.load(folder, datetime.date(2026, 3, 1))


def wrong(
    *failing: tuple[str, str, float], kernels: tuple[str, ...] = (), status: Status = "fail", headline: str = "h"
) -> Verdict:
    numbers = [Failing(metric=metric, where=where, value=value) for metric, where, value in failing]
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
    detail = NumericsDetail(failing=numbers, kernels=list(kernels))
    return Verdict(cell=cell, check="gemm", status=status, headline=headline, detail=detail)


KNOWN = ("fprop sqnr", "uniform", 21.0)


@pytest.mark.parametrize(
    ("failing", "status"),
    [
        ([KNOWN], "known"),
        ([("fprop sqnr", "outliers", 20.0)], "known"),
        ([KNOWN, ("fprop sqnr", "outliers", 22.0)], "known"),
        ([("fprop sqnr", "uniform", 19.9)], "fail"),
        ([("fprop sqnr", "uniform", 22.1)], "fail"),
        ([("fprop sqnr", "uniform", NAN)], "fail"),
        ([("fprop sqnr", "gaussian", 21.0)], "fail"),
        ([("dgrad sqnr", "uniform", 21.0)], "fail"),
        ([KNOWN, ("dgrad sqnr", "uniform", 21.0)], "fail"),
        ([], "fail"),
    ],
)
def test_every_failing_number_is_named_with_its_range(tmp_path, failing, status):
    assert entries(tmp_path, SQNR).mark(wrong(*failing)).status == status


@pytest.mark.parametrize(
    ("kernels", "status"),
    [(("triton_red_a",), "known"), (("triton_red_a", "triton_b"), "fail"), (("triton_b",), "fail"), ((), "fail")],
)
def test_a_kernel_that_is_named_is_the_only_one_to_blame(tmp_path, kernels, status):
    assert entries(tmp_path, f'{SQNR}\nkernel = "triton_red_a"').mark(wrong(KNOWN, kernels=kernels)).status == status
    assert entries(tmp_path, SQNR).mark(wrong(KNOWN, kernels=kernels)).status == "known"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            "",
            r"\(row\): .*name what fails: number = \[{ metric, where, low, high }\], or says = a part of the headline( \(|$)",
        ),
        (SQNR.replace("low = 20", "low = 23"), r"key number.0: .*low = 23 and high = 22 are no range"),
        (SQNR.replace("low = 20", "low = nan"), r"key number.0: .*for a NaN give nan twice"),
        (SQNR.replace("low = 20, ", ""), r"key number.0.low: Field required"),
    ],
)
def test_an_entry_that_names_nothing_is_malformed(tmp_path, named, message):
    with pytest.raises(ValueError, match=message):
        entries(tmp_path, named)


class TestLossParity:
    def parts(
        self, golden: Golden, run: Make, change: np.ndarray | float, folder: Path
    ) -> tuple[Verdict, dict[str, float]]:
        controls = [run(seed=s) for s in SEEDS]
        found = judged(golden, [run("te-current", s, 7, change) for s in SEEDS], controls, folder)
        return found, {f.metric: f.value for f in found.failing}

    def test_a_spike_is_the_band_alone(self, golden, run, tmp_path):
        found, parts = self.parts(golden, run, at(48, 56, 0.05), tmp_path)
        assert found.status == "fail"
        assert parts == {
            "first out": pytest.approx(0.05, abs=2e-3),
            "to control: first out": pytest.approx(0.05, abs=2e-3),
        }

    @pytest.mark.parametrize(("spike", "status"), [(0.05, "known"), (0.2, "fail")])
    def test_an_entry_names_the_part_and_its_range(self, golden, run, tmp_path, spike, status):
        names = [f'{{ metric = "{name}", low = 0.04, high = 0.06 }}' for name in ("first out", "to control: first out")]
        known = entries(tmp_path, f"number = [{', '.join(names)}]", check="loss parity")
        assert known.mark(self.parts(golden, run, at(48, 56, spike), tmp_path)[0]).status == status
        gap_too = self.parts(golden, run, at(48, 56, 0.05) + at(120, STEPS, 0.01), tmp_path)[0]
        assert known.mark(gap_too).status == "fail"
