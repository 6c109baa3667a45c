"""Grids, rounding and codes against torch's own FP8 types, for every BF16 value and every tie."""

import math

import pytest
import torch
from fp8parity.numerics import prng
from fp8parity.numerics.formats import (
    E2M1,
    E4M3,
    FORMATS,
    _round_by_spacing,
    e8m0_decode,
    e8m0_encode,
    encode,
    grid,
    power_of_two_floor,
    round_to_grid,
)
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

DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
EVERY_BF16 = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16).float()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 3.0, 0.7123, 2.0**-9])
def test_every_bf16_value_rounds_as_in_torch(name, factor):
    x, fmt = EVERY_BF16 * factor, FORMATS[name]
    ours, theirs = round_to_grid(x, fmt), x.clamp(-fmt.max, fmt.max).to(DTYPES[name])
    finite = ~x.isnan()
    assert torch.equal(encode(ours, fmt)[finite], theirs.view(torch.uint8)[finite])
    assert ours[~finite].isnan().all()


@pytest.mark.parametrize("name", DTYPES)
def test_both_rounding_paths_agree_around_ties(name):
    fmt = FORMATS[name]
    values = grid(fmt)
    values = values[values.isfinite()].sort().values.double()
    ties = ((values[1:] + values[:-1]) / 2).float()
    around = torch.cat([ties, *(ties.nextafter(torch.tensor(side)) for side in (math.inf, -math.inf))])
    by_splitting = round_to_grid(around, fmt)
    assert torch.equal(by_splitting, _round_by_spacing(around.clamp(-fmt.max, fmt.max), fmt, None))
    assert torch.equal(by_splitting, around.to(DTYPES[name]).float())


def test_e2m1_rounds_ties_to_even():
    assert grid(E2M1)[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 99.0, -0.25, -2.5])
    assert round_to_grid(x, E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, 0, -2]
    assert encode(round_to_grid(torch.tensor([-0.1]), E2M1), E2M1).tolist() == [8]  # minus zero keeps its sign


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_codes_round_trip(fmt):
    values = grid(fmt)
    if fmt.name in DTYPES:
        theirs = torch.arange(256, dtype=torch.uint8).view(DTYPES[fmt.name]).float()
        assert torch.equal(values.nan_to_num(7e5, 8e5, -8e5), theirs.nan_to_num(7e5, 8e5, -8e5))
    back, keep = encode(values, fmt), ~values.isnan()
    assert torch.equal(back[keep], torch.arange(2**fmt.bits, dtype=torch.int32).to(torch.uint8)[keep])
    assert torch.equal(values[back[keep].long()], values[keep])


def test_overflow_saturates():
    x = torch.tensor([449.0, 464.0, 480.0, -1e9, math.inf])
    assert round_to_grid(x, E4M3).tolist() == [448, 448, 448, -448, 448]


def test_stochastic_rounding_is_unbiased_and_on_the_grid():
    x = torch.full((200_000,), 2.3)
    y = round_to_grid(x, E2M1, noise=torch.rand(x.shape, generator=torch.Generator().manual_seed(0)))
    assert set(y.tolist()) == {2.0, 3.0}
    assert abs(float(y.mean()) - 2.3) < 5 * 0.46 / math.sqrt(x.numel())
    assert round_to_grid(torch.tensor([6.0, 8.0]), E2M1, noise=torch.tensor([0.999, 0.999])).tolist() == [6, 6]


@given(st.floats(min_value=2.0**-120, max_value=2.0**120, width=32))
def test_e8m0_brackets_its_value(x):
    value = torch.tensor(x)
    low, high = (float(e8m0_decode(e8m0_encode(value, up=up))) for up in (False, True))
    assert low <= x <= high and high in (low, 2 * low)
    assert (low == high) == (math.frexp(x)[0] == 0.5)
    assert float(power_of_two_floor(value)) == low


def test_e8m0_of_extreme_values():
    x = torch.tensor([0.0, 2.0**-127, 2.0**-127 * 1.5, 2.0**-126, 1.0, 1 + 2.0**-23, 3.4e38, math.inf, math.nan])
    assert e8m0_encode(x, up=True).tolist() == [0, 0, 1, 1, 127, 128, 254, 254, 255]
    assert e8m0_encode(x, up=False).tolist() == [0, 0, 0, 1, 127, 127, 254, 254, 255]
    codes = torch.tensor([0, 1, 127, 254], dtype=torch.int32)
    assert e8m0_decode(codes).tolist() == [2.0**-127, 2.0**-126, 1, 2.0**127]


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
