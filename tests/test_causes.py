"""Causes that records prove, and records that prove none. tests/faults/operands.py has the causes of planted faults."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from fp8parity.gate.results import failed
from fp8parity.judging.causes import BF16_NOISE
from fp8parity.judging.compare import compare
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.report.sentence import sentence
from sessions import measurements, stored, verdict

CELL = Cell(model="tiny", recipe="te-block", execution=Execution.NATIVE)
H200, XEON = measurements("h200"), measurements("xeon")


def record(
    check: str, recipe: str, execution: Execution = Execution.NATIVE, among: list[Measurements] = H200
) -> Measurements:
    return next(
        r
        for r in among
        if (r.check, r.cell.recipe, r.cell.model, r.cell.execution) == (check, recipe, "tiny", execution)
    )


def changed(made: Measurements, values: dict[str, float] | None = None, *, recipe: str = "") -> Measurements:
    """The record with other values, by metric or by place, as a record of another recipe."""
    new = values or {}
    found = [replace(m, value=new.get(m.place, new.get(m.metric, m.value))) for m in made.values]
    return made.model_copy(
        update={"cell": made.cell.model_copy(update={"recipe": recipe or made.cell.recipe}), "values": found}
    )


def causes(found: Verdict) -> list[str]:
    return [text for name, text in found.lines if name == "cause"]


class TestUnquantized:
    def test_gemms_of_bf16(self):
        made = changed(record("gemm", "bf16", among=XEON), recipe="te-block")
        assert causes(verdict(made)) == ["fprop, dgrad, wgrad: this is BF16's SQNR: nothing was quantized"]

    @pytest.mark.parametrize("value", [40.0, 60.0])
    def test_an_sqnr_that_is_too_high_but_not_bf16s_proves_nothing(self, value):
        found = verdict(changed(record("gemm", "te-block"), {"fprop sqnr": value}))
        assert (found.status, causes(found)) == ("fail", [])

    def test_a_wrong_bf16_is_not_called_unquantized(self):
        found = verdict(changed(record("gemm", "bf16"), {"fprop sqnr": 60.0}))
        assert (found.status, causes(found)) == ("fail", [])


class TestAccumulation:
    """te-block splits its sums, so it may have no bias."""

    @pytest.mark.parametrize(
        ("values", "power", "words"),
        [
            ((-0.002, -0.0246, -0.1, -0.3), 0, "fprop: the bias grows with K (-0.20% at K=512 and -30.00% at K=32768): a short accumulator"),
            ((0.01, 0.01, 0.01, 0.01), 1e-4, "the bias is the same for every K (+1.00% at K=512 and +1.00% at K=32768): a scale, not an accumulator"),
            ((-0.01, -0.01, -0.0101, -0.01), 1e-4, "a scale, or sums or results that are rounded towards zero"),
            ((-0.01, -0.01, -0.0101, -0.01), 0.02, "and its noise power is twice that: signs are wrong"),
            ((-0.01, -0.02, -0.005, -0.01), 1e-4, ""),
            # A bias that no scale, no rounding and no sign gives: 1% off in every result would be 40 dB, and 1% of the signs 17 dB.
            ((-0.01, -0.01, -0.0101, -0.01), 0, ""),
        ],
    )  # fmt: skip
    def test_the_bias_over_k(self, values, power, words):
        lengths = dict(zip((512, 2048, 8192, 32768), values, strict=True))
        numbers = {f"fprop bias @ K={k}": v for k, v in lengths.items()}
        numbers |= {f"fprop sqnr @ K={k}": -10 * math.log10(power + BF16_NOISE) for k in lengths}
        found = verdict(changed(record("accumulation", "te-block"), numbers))
        assert found.status == "fail"
        assert len(causes(found)) == bool(words)
        assert all(words in text for text in causes(found))

    @pytest.mark.parametrize("which", ["row", "column"])
    @pytest.mark.parametrize(
        ("gemm", "axes"),
        [
            ("fprop", ("tokens", "output features")),
            ("dgrad", ("tokens", "input features")),
            ("wgrad", ("output features", "input features")),
        ],
    )
    def test_wrong_rows_and_columns_are_named_by_what_they_mean(self, gemm, axes, which):
        made = record("gemm", "te-block", Execution.EMULATED, XEON)
        lost = {f"{gemm} worst {which} sqnr": 12.0, f"{gemm} sqnr": 1.0}
        found = changed(made, {m.place: m.value - lost[m.metric] for m in made.values if m.metric in lost})
        axis = axes[which == "column"]
        assert causes(verdict(found)) == [
            f"{gemm}: its worst {which} is 12 dB below its expected SQNR, the whole 1.0 dB: some {which}s ({axis}) are wrong"
        ]


class TestExact:
    """tests/faults has the causes of codes, defaults, state and checkpoints."""

    @pytest.mark.parametrize(
        ("check", "place", "value", "sizes", "words"),
        [
            ("dispatch", "quantized kernels off @ backward", 28.0, {"compared": 42.0}, "of 42 quantized kernels of the recipe, 28 are missing or too many (backward)"),
            ("state", "race difference @ tiny steps", 0.03, {"unequal": 2.0, "compared": 25.0}, "2 of 25 repeats of one step differ (tiny steps), by up to 3% (|a - b| / |a|)"),
            ("state", "race difference @ tiny steps", 0.03, {}, ""),  # a record of before there were sizes
            ("state", "race difference @ tiny steps", 0.0, {}, ""),
        ],
    )  # fmt: skip
    def test_sizes_of_a_difference_are_a_sentence(self, check, place, value, sizes, words):
        made = changed(record(check, "te-block"), {place: value})
        found = verdict(
            made.model_copy(update={"values": [*made.values, *(Measurement(k, place, v) for k, v in sizes.items())]})
        )
        assert causes(found) == [words] * bool(words)
        assert (found.status, [f.brief for f in found.failing]) == (
            ("fail", [f"{place} {value:g}"]) if value else ("pass", [])
        )

    def test_a_comparison_does_not_miss_sizes(self):
        old = record("state", "te-block")
        place = "race difference @ tiny steps"
        new = changed(old, {place: 0.03})
        new = new.model_copy(update={"values": [*new.values, Measurement("unequal", place, 2.0)]})
        goldens, policy = stored()
        found = compare([old], [new], goldens, policy)
        assert (found.code, found.missing) == (1, [])


class TestSentence:
    def test_the_number_furthest_out_is_in_the_first_sentence(self):
        found = verdict(
            changed(record("gemm", "te-block"), {"fprop sqnr @ odd-shape": 20.0, "wgrad sqnr @ odd-shape": 27.0})
        )
        text = sentence([found], [])
        assert text.startswith("Refuse: te-block on one linear fails (gemm: 2 of ")
        assert ", fprop sqnr @ odd-shape 20 dB is below [" in text
        assert "wgrad" not in text
        assert found.message().startswith("te-block-tiny-native: gemm of one linear fail: ")

    def test_an_exception_is_one_line(self):
        found = failed(
            CELL, "gemm", "RuntimeError: CUDA error: invalid argument\nCUDA kernel errors might be\nreported later"
        )
        assert found.headline == "RuntimeError: CUDA error: invalid argument"
        assert found.lines == [("more", "CUDA kernel errors might be\nreported later")]
        assert failed(CELL, "gemm", "no file").lines == []
