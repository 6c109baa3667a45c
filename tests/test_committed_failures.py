"""golden/known_failures.toml against the records that it was measured on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp8parity.judging import numerics
from fp8parity.judging.verdict import Status
from fp8parity.records import sets
from fp8parity.records.schema import Measurements
from sessions import GOLDEN, measured_in, stored


@pytest.fixture(scope="module")
def records() -> dict[tuple[str, str], Measurements]:
    found = [r for name in ("h200", "h100-gate-sixth") for r in sets.load([GOLDEN / "records" / f"{name}.zip"])]
    return {
        (r.cell.id, r.check): r for r in found if isinstance(r, Measurements) and r.cell.recipe == "ao-rowwise-gw-hp"
    }


def judged(record: Measurements) -> Status:
    own, rules = stored()
    assert rules.known is not None
    return rules.known.mark(numerics.judge(record, rules, own.numbers)).status


@pytest.mark.parametrize(("model", "check"), [("mini", "autotune"), ("small", "autotune"), ("mini", "modes")])
def test_the_measured_failures_are_known(records, model, check):
    assert judged(records[f"ao-rowwise-gw-hp-{model}-native", check]) == "known"


def test_the_race_at_small_is_known():
    assert judged(measured_in("found/h100-x2-gate-mps", "ao-rowwise-gw-hp-small-native", "modes")) == "known"


def test_attention_beside_other_processes_is_red_if_it_is_a_decibel_off():
    """docs/findings.md. A result with another dq is inside the band."""
    found = {
        name: measured_in(name, "te-delayed-tiny-native", "attention")
        for name in ("found/h100-x2-gate-mps", "h200-gate-fifth", "h100-gate-sixth")
    }
    assert [judged(record) for record in found.values()] == ["fail", "pass", "pass"]
    dq = [next(m.value for m in record.values if m.where == "dq") for record in found.values()]
    assert dq == pytest.approx([13.778, 19.531, 19.531], abs=0.001)


@pytest.mark.parametrize(
    ("check", "metric", "value"),
    [
        ("autotune", "configuration difference", 0.3),
        ("autotune", "autotuned kernels", 2.0),
        ("modes", "compiled difference", 0.6),
        ("modes", "graphed difference", 0.1),
        ("modes", "compiled graphs", 0.0),
    ],
)
def test_other_values_and_further_numbers_are_red(records, check, metric, value):
    record = records["ao-rowwise-gw-hp-mini-native", check]
    values = [replace(m, value=value) if m.metric == metric else m for m in record.values]
    assert judged(record.model_copy(update={"values": values})) == "fail"


def test_another_kernel_is_red(records):
    record = records["ao-rowwise-gw-hp-mini-native", "autotune"]
    other = [note.replace("silu", "gelu") for note in record.notes]
    assert other != record.notes
    assert judged(record.model_copy(update={"notes": other})) == "fail"
