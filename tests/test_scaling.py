"""Scale rules in their corners, tiles, NVFP4's two levels, the Hadamard transform, and theory for Gaussian data."""

import math

import pytest
import torch
from fp8parity.numerics import prng
from fp8parity.numerics.formats import E4M3
from fp8parity.numerics.operands import sqnr
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

AMAX = torch.tensor([0.0, 1e-38, 1.0, 448.0, 3.3, math.inf])


def test_rules_in_their_corners():
    te = SCALE_RULES["te-fp32"](AMAX, E4M3)
    assert te[:4].tolist() == [1.0, FP32_MAX, 448.0, 1.0]
    assert te[5] == 1.0
    assert te[4] == torch.tensor(448.0) / torch.tensor(3.3)
    block = SCALE_RULES["te-pow2"](AMAX, E4M3)
    assert block[[0, 2, 3, 4]].tolist() == [1.0, 256.0, 1.0, 128.0]
    ao = SCALE_RULES["ao-fp32"](AMAX, E4M3)
    assert ao[0] == torch.tensor(448e12, dtype=torch.float64).float()  # the epsilon, not 1
    assert ao[5] == 0


def test_division_is_correctly_rounded():
    """number / tensor in torch is number * reciprocal: wrong in the last bit for a quarter of these."""
    amax = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) + 0.5
    exact = (448.0 / amax.double()).float()
    assert torch.equal(SCALE_RULES["te-fp32"](amax, E4M3), exact)
    assert not torch.equal(448.0 / amax, exact)


def test_floor_and_round_up_differ_by_two_where_the_mantissa_exceeds_the_formats():
    amax = torch.tensor([448.0, 449.0, 256.0, 511.0])
    assert (1 / SCALE_RULES["e8m0-floor"](amax, E4M3)).tolist() == [1, 1, 1, 1]
    assert (1 / SCALE_RULES["e8m0-rceil"](amax, E4M3)).tolist() == [1, 2, 1, 2]


def test_delayed_scale_keeps_the_old_one_where_amax_says_nothing():
    old = torch.tensor(7.0)
    values = [float(delayed_scale(torch.tensor(a), old, E4M3)) for a in (0.0, math.inf, math.nan, 2.0, 1e-38)]
    assert values == [7.0, 7.0, 7.0, 224.0, FP32_MAX]


@pytest.mark.parametrize("extent", [(0, 0), (1, 0), (1, 128), (128, 128), (1, 32), (16, 16)])
@pytest.mark.parametrize("shape", [(256, 384), (96, 160), (7, 33)])
def test_untile_undoes_tile(extent, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    op = Operand("e4m3", extent, "te-pow2")
    assert torch.equal(untile(tile(x, op), op, x.shape), x)


def test_a_tile_is_scaled_by_its_own_amax():
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
def test_gaussian_sqnr_is_the_theorys(operand, theory):
    """Integrals of the rounding error over a Gaussian (arXiv 2506.08027, 2509.25149), either side."""
    x = prng.normal(prng.stream("theory"), 512 * 512).view(512, 512).bfloat16()
    assert abs(sqnr(x, quantize(x, operand).dequantize()) - theory) < 0.6


@pytest.mark.parametrize("scale", ["te-pow2", "e8m0-rceil", "nvfp4"])
def test_exact_data_is_exact(scale):
    """What is called exact in BF16 is the dequantized operand to the bit."""
    op = Operand("e2m1", (1, 16), "nvfp4") if scale == "nvfp4" else Operand("e4m3", (1, 32), scale)
    x = prng.normal(1, 64 * 128).view(64, 128)
    x[:, ::7] *= 1e-4
    assert exact_in_bf16(op)
    data, outer, _ = gemm_tiles(tile(x, op), op)
    q = quantize(x, op)
    assert torch.equal(untile(data.float() * outer, op, x.shape), q.dequantize())


def test_zero_tiles_give_zero_codes_and_finite_scales():
    for op in (
        Operand("e4m3", (1, 32), "e8m0-rceil"),
        Operand("e2m1", (1, 16), "nvfp4"),
        Operand("e4m3", (0, 0), "te-fp32"),
    ):
        q = quantize(torch.zeros(4, 64), op)
        assert q.codes().sum() == 0
        assert q.decode.isfinite().all()
        assert q.dequantize().isfinite().all()


def test_hadamard_is_orthonormal_and_cancels_in_a_product():
    x, w = (prng.normal(s, 32 * 64).view(32, 64) for s in (1, 2))
    assert torch.allclose(hadamard(x).norm(), x.norm(), rtol=1e-6)
    assert torch.allclose(hadamard(x) @ hadamard(w).T, x @ w.T, atol=1e-4)
    assert not torch.allclose(hadamard(x), x, atol=0.1)


@pytest.mark.parametrize(
    ("rule", "largest"), [("te-fp32", FP32_MAX), ("te-block-fp32", BF16_MAX), ("te-pow2", 2.0**127)]
)
def test_a_scale_that_would_overflow(rule, largest):
    """TE's current scaling then takes the largest FP32 value, and its block scaling the largest BF16 value: both as their kernels do on
    an H100 (pytest -m h100 suites/numerics -k codes --recipe te-block-fp32)."""
    amax = torch.tensor([2.0**-130, 0.0])
    assert SCALE_RULES[rule](amax, E4M3).tolist() == [largest, 1.0]
