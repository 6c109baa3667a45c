"""known_failures.toml: what turns a red verdict into a known one, by numbers or words, and wrong entries."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fp8parity.judging import numerics
from fp8parity.judging.policy import known_failures
from fp8parity.judging.policy.known_failures import KnownFailures
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.table import Judged, Place
from fp8parity.judging.verdict import NumericsDetail, Status, Verdict
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurements
from paired import SEEDS, STEPS, Make, at, judged
from sessions import GOLDEN, stored

TODAY = datetime.date(2026, 3, 1)
ENTRY = """
[[known]]
recipe = "te-current"
execution = "native"
check = "loss parity"
status = "fail"
says = "the gap is outside"
link = "https://example.org/issues/7"
expires = 2026-03-02
why = "the scale is applied twice"
"""


def verdict(status: Status = "fail", execution="native", check="loss parity", recipe="te-current") -> Verdict:
    cell = Cell(model="tiny", recipe=recipe, execution=Execution(execution), corpus="topics")
    return Verdict(cell=cell, check=check, status=status, headline="the gap is outside")


def entries(tmp_path, text=ENTRY, today=TODAY) -> KnownFailures:
    (tmp_path / known_failures.FILE).write_text(text)
    return known_failures.load(tmp_path, today)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (verdict(), "known"),
        (verdict("inconclusive"), "inconclusive"),
        (verdict(execution="emulated"), "fail"),
        (verdict(check="gemm"), "fail"),
        (verdict(recipe="te-block"), "fail"),
        (verdict("pass"), "pass"),
    ],
)
def test_only_the_very_failure_is_known(tmp_path, given, status):
    found = entries(tmp_path).mark(given)
    assert found.status == status
    assert found.green == (status in ("known", "pass"))


def test_from_its_expiry_on_a_failure_is_red_again(tmp_path):
    late = entries(tmp_path, today=datetime.date(2026, 3, 2))
    assert late.mark(verdict()).status == "fail"
    assert late.problems([late.mark(verdict())]) == [
        f"{tmp_path / known_failures.FILE}:2: expired on 2026-03-02: recipe te-current; execution native, loss parity "
        "(https://example.org/issues/7); fix it, or renew it with a reason"
    ]


@pytest.mark.parametrize(
    ("strict", "status", "red"), [(True, "pass", 1), (False, "pass", 0), (False, "fail", 1), (True, "fail", 1)]
)
def test_an_expired_entry_that_is_not_strict_lets_green_be(tmp_path, strict, status, red):
    late = entries(tmp_path, ENTRY + f"strict = {str(strict).lower()}", datetime.date(2026, 3, 2))
    assert len(late.problems([verdict(status)])) == red


@pytest.mark.parametrize(
    ("text", "verdicts", "words"),
    [
        (ENTRY, [verdict("known")], None),
        (ENTRY, [verdict("pass")], "te-current-tiny-native loss parity is green now; remove the entry"),
        (
            ENTRY.replace('"te-current"', '["te-current", "te-block"]'),
            [verdict("known"), verdict("pass", recipe="te-block")],
            "te-block-tiny-native loss parity is",
        ),
    ],
)
def test_entries_are_strict(tmp_path, text, verdicts, words):
    found = entries(tmp_path, text).problems(verdicts)
    assert (words is None and not found) or (words is not None and len(found) == 1 and words in found[0])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('status = "fail"', 'status = "pass"', "key status: .*pass is not a failure"),
        ('link = "https://example.org/issues/7"\n', "", "key link: Field required"),
        ('recipe = "te-current"', 'recipe = "te-*"', "key recipe: .*'te-\\*' is a pattern; list the names"),
        ("[[known]]", "[[knwon]]", "unknown table 'knwon'; known: known"),
    ],
)
def test_malformed_entries_name_file_line_and_key(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=re.escape(known_failures.FILE) + r".*" + message):
        entries(tmp_path, ENTRY.replace(old, new))


@pytest.fixture(scope="module")
def records() -> dict[tuple[str, str], Measurements]:
    found = [r for name in ("h200", "h100-gate-sixth") for r in sets.load([GOLDEN / "records" / f"{name}.zip"])]
    return {
        (r.cell.id, r.check): r for r in found if isinstance(r, Measurements) and r.cell.recipe == "ao-rowwise-gw-hp"
    }


def status_of(record: Measurements) -> Status:
    own, rules = stored()
    assert rules.known is not None
    return rules.known.mark(numerics.judge(record, rules, own.numbers)).status


@pytest.mark.parametrize(("model", "check"), [("mini", "autotune"), ("small", "autotune"), ("mini", "modes")])
def test_the_measured_failures_are_known(records, model, check):
    assert status_of(records[f"ao-rowwise-gw-hp-{model}-native", check]) == "known"


@pytest.mark.parametrize(
    ("check", "metric", "value"),
    [
        ("autotune", "configuration difference", 0.3),
        ("modes", "compiled difference", 0.6),
        ("modes", "compiled graphs", 0.0),
    ],
)
def test_other_values_and_further_numbers_are_red(records, check, metric, value):
    record = records["ao-rowwise-gw-hp-mini-native", check]
    values = [replace(m, value=value) if m.metric == metric else m for m in record.values]
    assert status_of(record.model_copy(update={"values": values})) == "fail"


def test_another_kernel_is_red(records):
    record = records["ao-rowwise-gw-hp-mini-native", "autotune"]
    other = [note.replace("silu", "gelu") for note in record.notes]
    assert other != record.notes
    assert status_of(record.model_copy(update={"notes": other})) == "fail"


NAN = math.nan
NUMBERED = """
[[known]]
check = "{check}"
status = "{status}"
{named}
link = "https://example.org/issues/7"
expires = 2999-01-01
why = "the scale is applied twice"
"""
SQNR = 'number = [{ metric = "fprop sqnr", where = ["uniform", "outliers"], low = 20, high = 22 }]'


def numbered(folder: Path, named: str, check: str = "gemm", status: str = "fail") -> KnownFailures:
    (folder / known_failures.FILE).write_text(NUMBERED.format(check=check, status=status, named=named))
    return known_failures.load(folder, datetime.date(2026, 3, 1))


def wrong(
    *failing: tuple[str, str, float], kernels: tuple[str, ...] = (), status: Status = "fail", headline: str = "h"
) -> Verdict:
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
    same: dict[str, Any] = {"cell": cell, "check": "gemm"}
    rows = [Judged(**same, metric=m, where=where, value=value, status=Place.WORSE) for m, where, value in failing]
    return Verdict(**same, status=status, headline=headline, rows=rows, detail=NumericsDetail(kernels=list(kernels)))


KNOWN = ("fprop sqnr", "uniform", 21.0)


@pytest.mark.parametrize(
    ("failing", "status"),
    [
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
    assert numbered(tmp_path, SQNR).mark(wrong(*failing)).status == status


@pytest.mark.parametrize(
    ("kernels", "status"),
    [(("triton_red_a",), "known"), (("triton_red_a", "triton_b"), "fail"), (("triton_b",), "fail"), ((), "fail")],
)
def test_a_kernel_that_is_named_is_the_only_one_to_blame(tmp_path, kernels, status):
    assert numbered(tmp_path, f'{SQNR}\nkernel = "triton_red_a"').mark(wrong(KNOWN, kernels=kernels)).status == status
    assert numbered(tmp_path, SQNR).mark(wrong(KNOWN, kernels=kernels)).status == "known"


class TestLossParity:
    def found(self, golden: Golden, run: Make, change: np.ndarray | float, folder: Path) -> Verdict:
        return judged(golden, [run("te-current", s, 7, change) for s in SEEDS], [run(seed=s) for s in SEEDS], folder)

    @pytest.mark.parametrize(("spike", "status"), [(0.05, "known"), (0.2, "fail")])
    def test_an_entry_names_the_part_and_its_range(self, golden, run, tmp_path, spike, status):
        names = [f'{{ metric = "{name}", low = 0.04, high = 0.06 }}' for name in ("loss", "to control: loss")]
        known = numbered(tmp_path, f"number = [{', '.join(names)}]", check="loss parity")
        assert known.mark(self.found(golden, run, at(48, 56, spike), tmp_path)).status == status
        gap_too = self.found(golden, run, at(48, 56, 0.05) + at(120, STEPS, 0.01), tmp_path)
        assert known.mark(gap_too).status == "fail"
