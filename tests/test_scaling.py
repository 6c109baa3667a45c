"""Scale rules, tiles, NVFP4's two levels, the Hadamard transform, and SQNRs against theory."""

import math

import pytest
import torch
from fp8parity.numerics import prng
from fp8parity.numerics.formats import E4M3
from fp8parity.numerics.operands import decibels, sqnr
from fp8parity.numerics.scaling import (
    BF16_MAX,
    FP32_MAX,
    SCALE_RULES,
    delayed_scale,
    exact_in_bf16,
    gemm_tiles,
    hadamard,
    quantize,
    tile,
    untile,
)
from fp8parity.numerics.spec import Operand
from hypothesis import given, settings
from hypothesis import strategies as st

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("rule", "amax", "scale"),
    [
        ("te-fp32", [0.0, 1e-38, 1.0, 448.0, 2.0**-130, INF], [1.0, FP32_MAX, 448.0, 1.0, FP32_MAX, 1.0]),
        ("te-block-fp32", [0.0, 2.0**-130], [1.0, BF16_MAX]),
        ("te-pow2", [0.0, 1.0, 448.0, 3.3, 2.0**-130], [1.0, 256.0, 1.0, 128.0, 2.0**127]),
        ("ao-fp32", [0.0, 448.0, INF], [float(torch.tensor(448e12)), 1.0, 0.0]),
        ("e8m0-floor", [448.0, 449.0, 256.0, 511.0], [1, 1, 1, 1]),
        ("e8m0-rceil", [448.0, 449.0, 256.0, 511.0], [1, 0.5, 1, 0.5]),
    ],
)
def test_rules_of_extreme_amaxes(rule, amax, scale):
    """An overflow gives the largest FP32 value in TE's current scaling and the largest BF16 value in its block scaling."""
    assert SCALE_RULES[rule](torch.tensor(amax), E4M3).tolist() == scale


def test_division_is_correctly_rounded():
    """number / tensor in torch is number * reciprocal: wrong in the last bit for a quarter of these."""
    amax = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) + 0.5
    exact = (448.0 / amax.double()).float()
    assert torch.equal(SCALE_RULES["te-fp32"](amax, E4M3), exact)
    assert not torch.equal(448.0 / amax, exact)


def test_delayed_scale_without_an_amax_is_the_previous_one():
    old = torch.tensor(7.0)
    values = [float(delayed_scale(torch.tensor(a), old, E4M3)) for a in (0.0, INF, NAN, 2.0, 1e-38)]
    assert values == [7.0, 7.0, 7.0, 224.0, FP32_MAX]


@given(
    st.sampled_from([(0, 0), (1, 0), (1, 128), (128, 128), (1, 32), (16, 16)]), st.integers(1, 260), st.integers(1, 400)
)
@settings(max_examples=40, deadline=None)
def test_untile_inverts_tile(extent, rows, columns):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    op = Operand("e4m3", extent, "te-pow2")
    assert torch.equal(untile(tile(x, op), op, x.shape), x)


def test_tile_is_scaled_by_its_own_amax():
    x = torch.ones(2, 64)
    x[1, 32:] = 100
    q = quantize(x, Operand("e4m3", (1, 32), "e8m0-rceil"))
    assert q.decode.tolist() == [[2.0**-8, 2.0**-8], [2.0**-8, 0.25]]
    assert torch.equal(q.dequantize()[0], x[0])


@pytest.mark.parametrize(
    ("operand", "theory"),
    [
        (Operand("e4m3", (0, 0), "te-fp32"), 31.5),
        (Operand("e4m3", (1, 0), "ao-pow2"), 31.5),
        (Operand("e4m3", (1, 32), "e8m0-rceil"), 31.5),
        (Operand("e4m3", (1, 32), "e8m0-floor"), 30.7),
        (Operand("e5m2", (0, 0), "te-fp32"), 25.6),
        (Operand("e2m1", (1, 16), "nvfp4"), 20.4),
    ],
    ids=str,
)
def test_gaussian_sqnr_agrees_with_theory(operand, theory):
    """Integrals of the rounding error over a Gaussian (arXiv 2506.08027, 2509.25149), either side."""
    x = prng.normal(prng.stream("theory"), 512 * 512).view(512, 512).bfloat16()
    assert abs(sqnr(x, quantize(x, operand).dequantize()) - theory) < 0.6


@pytest.mark.parametrize(
    "op",
    [Operand("e4m3", (1, 32), "te-pow2"), Operand("e4m3", (1, 32), "e8m0-rceil"), Operand("e2m1", (1, 16), "nvfp4")],
    ids=str,
)
def test_exact_operands_are_exact_in_bf16_and_zeros_are_zero(op):
    x = prng.normal(1, 64 * 128).view(64, 128)
    x[:, ::7] *= 1e-4
    assert exact_in_bf16(op)
    data, outer, _ = gemm_tiles(tile(x, op), op)
    assert torch.equal(untile(data.float() * outer, op, x.shape), quantize(x, op).dequantize())
    zero = quantize(torch.zeros(4, 64), op)
    assert zero.codes().sum() == 0 and zero.decode.isfinite().all() and zero.dequantize().isfinite().all()


def test_hadamard_is_orthonormal_and_cancels_in_a_product():
    x, w = (prng.normal(s, 32 * 64).view(32, 64) for s in (1, 2))
    assert torch.allclose(hadamard(x).norm(), x.norm(), rtol=1e-6)
    assert torch.allclose(hadamard(x) @ hadamard(w).T, x @ w.T, atol=1e-4)
    assert not torch.allclose(hadamard(x), x, atol=0.1)


@pytest.mark.parametrize(
    ("signal", "noise", "value"),
    [
        (10.0, 1.0, 20.0),
        (1.0, 0.0, INF),
        (0.0, 0.0, INF),
        (0.0, 1.0, -INF),
        (1.0, INF, -INF),
        (NAN, 1.0, NAN),
        (1.0, NAN, NAN),
        (INF, INF, NAN),
    ],
)
def test_decibels_of_special_norms(signal, noise, value):
    assert decibels(signal, noise) == pytest.approx(value, nan_ok=True)
