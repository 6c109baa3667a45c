"""The numbers of the check gemm. tests/faults/operands.py has the faults that they must show."""

from __future__ import annotations

import math

import pytest
import torch
from faults.plants import short_accumulator
from fp8parity.checks.gemm import compare, gain, worst_sqnr
from sessions import cell


@pytest.mark.slow
def test_recipe_with_wgrad_in_bf16_is_green(session, eager):
    """tests/test_faults.py has the others."""
    verdict = session.numerics("gemm", cell("ao-rowwise-gw-hp"))
    assert (verdict.status, verdict.lines) == ("pass", []), verdict.message()


def test_thirteen_bits_are_left_to_the_check_accumulation(session, monkeypatch, eager):
    """Native kernels of an H100 have such a chain in fprop: here it moves the gain by less than a native band."""
    short_accumulator(13)(monkeypatch)
    values = {m.place: m.value for m in session.measure("gemm", cell("te-current")).values}
    assert values["fprop gain @ gaussian"] == pytest.approx(-0.00154, abs=5e-5)  # -0.00123 with FP32 sums


class TestNumbers:
    EXACT = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.001, 0.0]], dtype=torch.float64)

    @pytest.mark.parametrize(
        ("factor", "expected"), [(1.01, 0.01), (0.99, -0.01), (2.0, 1.0), (0.0, -1.0), (-1.0, -2.0)]
    )
    def test_gain_is_signed(self, factor, expected):
        assert gain(self.EXACT, self.EXACT * factor) == pytest.approx(expected)

    def test_noise_across_the_result_is_no_gain(self):
        assert gain(self.EXACT[:2], self.EXACT[:2] + torch.tensor([[4.0, -3.0], [4.0, -3.0]])) == pytest.approx(
            0, abs=1e-12
        )

    @pytest.mark.parametrize(("axis", "expected"), [(1, 20.0), (0, 40.04)])
    def test_the_worst_row_and_column(self, axis, expected):
        """Row 0 is wrong by a tenth of its norm, a hundredth of a column's norm. Row 2 has no signal: its error does not count."""
        noise = torch.tensor([[0.09, 0.16], [0.0, 0.0], [1e-7, 0.0]], dtype=torch.float64)
        assert worst_sqnr(self.EXACT, noise, axis=axis) == pytest.approx(expected, abs=0.01)

    def test_passes_are_averaged(self):
        found = compare(self.EXACT, [self.EXACT * 1.1, self.EXACT * 0.9])
        assert found["gain"] == pytest.approx(0, abs=1e-12)
        assert found["worst row sqnr"] == pytest.approx(20)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_what_is_not_finite_stays_so(self, value):
        wrong = self.EXACT.clone()
        wrong[1, 1] = value
        assert not any(math.isfinite(v) for v in compare(self.EXACT, [wrong]).values())
