"""A verdict as data: its numbers, its message, its form in JSON, and which verdicts changed between two sides."""

from __future__ import annotations

import json
import math

import pytest
from fp8parity.judging.verdict import (
    BLOCK_THROUGHPUT,
    GEMMS,
    LOSS,
    THROUGHPUT,
    Failing,
    GemmDetail,
    LossDetail,
    NumericsDetail,
    SpeedDetail,
    Verdict,
    changed,
)
from fp8parity.records.cell import Mode
from verdicts import verdict

WRONG = Failing(metric="bias", where="K=512", value=math.inf)
SPEED = SpeedDetail(
    ratio=1.25, low=1.2, high=1.3, pairs=30, bf16_tokens_per_second=100, tokens_per_second=125, bf16_mfu=None, mfu=None, bf16_memory=4,
    memory=6, mode=Mode.EAGER,
)  # fmt: skip
DETAILS = {
    "loss": LossDetail(margin=0.005, seeds=[0], unmeasured=["x"], failing=[WRONG]),
    "numerics": NumericsDetail(unmeasured=["x"], failing=[WRONG]),
    "speed": SPEED,
    "gemms": GemmDetail(ratios={"eager": 1.5}, peak_tflops=700, failing=[WRONG]),
}


@pytest.mark.parametrize("kind", DETAILS)
def test_json_names_the_kind_of_detail_and_reads_back_as_the_same(kind):
    made = verdict("fail", detail=DETAILS[kind])
    assert json.loads(made.model_dump_json())["detail"]["kind"] == kind
    assert Verdict.model_validate_json(made.model_dump_json()) == made
    assert {name: getattr(made, name) is not None for name in DETAILS} == {name: name == kind for name in DETAILS}


@pytest.mark.parametrize(
    ("status", "red"),
    [
        *((status, True) for status in ("fail", "inconclusive", "drift", "no-golden", "stale", "error")),
        *((status, False) for status in ("pass", "improved", "known")),
    ],
)
def test_only_a_red_verdict_has_failing_numbers(status, red):
    for kind in ("loss", "numerics", "gemms"):
        assert verdict(status, detail=DETAILS[kind]).failing == ([WRONG] if red else [])
        assert Verdict.model_validate_json(verdict(status, detail=DETAILS[kind]).model_dump_json()).status == status
    assert verdict(status).failing == []
    assert verdict(status).green is not red


def test_the_numbers_that_only_rules_judged():
    assert {kind: verdict("pass", detail=detail).unmeasured for kind, detail in DETAILS.items()} == {
        "loss": ["x"], "numerics": ["x"], "speed": [], "gemms": [],
    }  # fmt: skip
    assert verdict("pass").unmeasured == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [("pass", "fail", "gemm: pass -> fail (after)"), ("fail", "pass", "gemm: fail -> pass (before)")],
)
def test_a_change_says_why_the_red_side_is_red(old, new, text):
    before, after = verdict(old, headline="before"), verdict(new, headline="after")
    alone, same = verdict("fail", check="other"), verdict("fail", check="same")
    assert [c.text for c in changed([before, same], [after, alone, same])] == [f"te-current-tiny-native {text}"]


def test_the_names_of_the_checks_stand_in_files_of_users():
    assert (LOSS, THROUGHPUT, BLOCK_THROUGHPUT, GEMMS) == (
        "loss parity",
        "throughput",
        "block throughput",
        "GEMM throughput",
    )
