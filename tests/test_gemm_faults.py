"""Faults that the SQNR of a whole GEMM hides: the gain and the worst row and column show them, and the verdict names the cause."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from fp8parity.checks.gemm import compare, gain, worst_sqnr
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics import emulation, scaling
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.spec import GEMMS
from sessions import cell
from torch import Tensor

Plant = Callable[[pytest.MonkeyPatch], None]
_ROUND, _GEMM = scaling.round_to_grid, emulation.gemm


def rounding(integer: Callable[[Tensor], Tensor]) -> Plant:
    """A quantiser that turns values, in units of the last bit, into integers in this way. Stochastic operands are as before."""

    def to_grid(x, fmt, *, saturate=True, noise=None):
        if noise is not None:
            return _ROUND(x, fmt, saturate=saturate, noise=noise)
        clamped = x.clamp(-fmt.max, fmt.max)
        exponent = torch.frexp(clamped).exponent - 1
        unit = torch.exp2((exponent.clamp(min=fmt.emin) - fmt.mantissa).float())
        return integer(clamped / unit) * unit

    return lambda patch: patch.setattr(scaling, "round_to_grid", to_grid)


def results(change: Callable[[Tensor], object]) -> Plant:
    """``change`` works in place on the result of every GEMM."""

    def gemm(a, b, *rest):
        y = _GEMM(a, b, *rest)
        change(y)
        return y

    return lambda patch: patch.setattr(emulation, "gemm", gemm)


def short_accumulator(bits: int) -> Plant:
    """One chain of sums that are truncated to ``bits`` fraction bits, in steps of 32 products."""

    def gemm(a, b, dtype=torch.bfloat16):
        (x, sx), (w, sw) = a, b
        total = torch.zeros(x.shape[0], w.shape[0])
        for k in range(0, x.shape[1], 32):
            total += x[:, k : k + 32].float() @ w[:, k : k + 32].float().T
            unit = torch.exp2((torch.frexp(total).exponent - 1 - bits).float())
            total = (total / unit).trunc() * unit
        return (total * (sx * (sw.T if sw.ndim else sw))).to(dtype)

    return lambda patch: patch.setattr(emulation, "gemm", gemm)


def unquantised(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EmulatedLinear, "operand", lambda self, name, x: (x, torch.ones(())))


def cut(y: Tensor) -> None:
    """Results keep six bits after the leading one."""
    y.copy_((y.float().view(torch.int32) & ~0x1FFFF).view(torch.float32))


truncated = rounding(torch.trunc)
ties_away = rounding(lambda x: x.sign() * (x.abs() + 0.5).floor())
TOWARDS_ZERO = "operands, partial sums or results are rounded towards zero"
UNIFORM_LOSS = "a scale, or sums or results that are rounded towards zero"
FAULTS = {
    "truncation": (truncated, "te-current", "fprop gain @ gaussian", "fprop: results are too small by 7.89% to 8.80%"),
    "truncation, scales of powers of two": (truncated, "te-block", "wgrad gain @ odd-shape", TOWARDS_ZERO),
    "ties away from zero": (ties_away, "te-block", "dgrad gain @ gaussian", "ties or more are rounded away from zero"),
    "scale 1% too large": (results(lambda y: y.mul_(1.01)), "te-current", "wgrad gain @ gaussian", "fprop, dgrad, wgrad: a gain of 1.01"),
    "scale 1% too small": (results(lambda y: y.mul_(0.99)), "te-block", "fprop gain @ near-zero", UNIFORM_LOSS),
    "scale 1% too large, NVFP4": (results(lambda y: y.mul_(1.01)), "te-nvfp4", "fprop gain @ gaussian", "a scale, not an accumulator"),
    "scale twice too large": (results(lambda y: y.mul_(2)), "te-current", "fprop sqnr @ gaussian", "a gain of 2 for all operands"),
    "scale half too small": (results(lambda y: y.mul_(0.5)), "te-nvfp4", "dgrad sqnr @ gaussian", "a gain of 0.5 for all operands"),
    "one token 10% too large": (results(lambda y: y[7].mul_(1.1)), "te-current", "fprop worst row sqnr @ gaussian", "some rows (tokens)"),
    "one token half too large": (results(lambda y: y[7].mul_(1.5)), "te-nvfp4", "dgrad worst row sqnr @ gaussian", "wgrad: its worst row"),
    "one feature 10% too large": (
        results(lambda y: y[:, 7].mul_(1.1)), "te-block", "wgrad worst column sqnr @ gaussian", "some columns (output features) are wrong",
    ),
    "one feature half too small": (
        results(lambda y: y[:, 7].mul_(0.5)), "te-nvfp4", "fprop worst column sqnr @ odd-shape", "some columns (input features) are wrong",
    ),
    "results lose bits": (results(cut), "te-current", "fprop gain @ gaussian", UNIFORM_LOSS),
    "ten bits of an accumulator": (short_accumulator(10), "te-current", "fprop gain @ gaussian", TOWARDS_ZERO),
    "nothing quantised": (
        unquantised, "te-current", "fprop worst row sqnr @ gaussian", "fprop, dgrad, wgrad: this is BF16's SQNR: nothing was quantised",
    ),
}  # fmt: skip
"""How each fault is planted, in which recipe, a place that must be named, and words of the cause."""
HIDDEN = ("ties away from zero", "scale 1% too large", "one token 10% too large", "one feature 10% too large", "results lose bits")
"""Faults that leave the SQNR of every whole GEMM inside its limits."""


@pytest.fixture
def found(session, monkeypatch, eager) -> Callable[[str], Verdict]:
    def judged(fault: str) -> Verdict:
        plant, recipe, *_ = FAULTS[fault]
        plant(monkeypatch)
        monkeypatch.setattr("fp8parity.judging.numerics.SHOWN", 99)
        return session.numerics("gemm", cell(recipe))

    return judged


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_its_place_and_its_cause_are_named(found, fault):
    _, _, place, cause = FAULTS[fault]
    verdict = found(fault)
    assert verdict.status == "fail"
    assert place in {name for name, _ in verdict.lines}
    causes = [text for name, text in verdict.lines if name == "cause"]
    assert any(cause in text for text in causes), causes


@pytest.mark.parametrize("fault", HIDDEN)
def test_the_whole_hides_the_fault(found, fault):
    outside = {name.split(" @ ")[0] for name, _ in found(fault).lines}
    assert not outside & {f"{gemm} sqnr" for gemm in GEMMS}


@pytest.mark.parametrize("recipe", ["te-current", "te-block", "te-nvfp4", "ao-rowwise-gw-hp"])
def test_sound_recipes_are_green_with_measured_numbers(session, eager, recipe):
    verdict = session.numerics("gemm", cell(recipe))
    assert (verdict.status, verdict.lines) == ("pass", []), verdict.message()


def test_thirteen_bits_are_left_to_the_check_accumulation(session, monkeypatch, eager):
    """Native kernels of an H100 have such a chain in fprop: here it moves the gain by less than a native band."""
    short_accumulator(13)(monkeypatch)
    values = {m.place: m.value for m in session.measure("gemm", cell("te-current")).values}
    assert values["fprop gain @ gaussian"] == pytest.approx(-0.00154, abs=5e-5)  # -0.00123 with FP32 sums


class TestNumbers:
    EXACT = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.001, 0.0]], dtype=torch.float64)

    @pytest.mark.parametrize(("factor", "expected"), [(1.01, 0.01), (0.99, -0.01), (2.0, 1.0), (0.0, -1.0), (-1.0, -2.0)])
    def test_gain_is_signed(self, factor, expected):
        assert gain(self.EXACT, self.EXACT * factor) == pytest.approx(expected)

    def test_noise_across_the_result_is_no_gain(self):
        assert gain(self.EXACT[:2], self.EXACT[:2] + torch.tensor([[4.0, -3.0], [4.0, -3.0]])) == pytest.approx(0, abs=1e-12)

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
