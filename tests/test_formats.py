"""Grids, rounding and codes against torch's own FP8 types, for every BF16 value and every tie."""

import math

import pytest
import torch
from fp8parity.numerics.formats import (
    E2M1,
    E4M3,
    E5M2,
    FORMATS,
    e8m0_decode,
    e8m0_encode,
    encode,
    grid,
    power_of_two_floor,
    round_to_grid,
)
from hypothesis import given
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
    assert torch.equal(by_splitting, round_to_grid(around, fmt, saturate=False))
    assert torch.equal(by_splitting, around.to(DTYPES[name]).float())


@pytest.mark.parametrize("name", DTYPES)
def test_grid_equals_torchs(name):
    theirs = torch.arange(256, dtype=torch.uint8).view(DTYPES[name]).float()
    assert torch.equal(grid(FORMATS[name]).nan_to_num(7e5, 8e5, -8e5), theirs.nan_to_num(7e5, 8e5, -8e5))


def test_e2m1_rounds_ties_to_even():
    assert grid(E2M1)[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    x = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 99.0, -0.25, -2.5])
    assert round_to_grid(x, E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4, 6, 6, 0, -2]
    assert encode(round_to_grid(torch.tensor([-0.1]), E2M1), E2M1).tolist() == [8]  # minus zero keeps its sign


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_codes_round_trip(fmt):
    values = grid(fmt)
    back, keep = encode(values, fmt), ~values.isnan()
    assert torch.equal(back[keep], torch.arange(2**fmt.bits, dtype=torch.int32).to(torch.uint8)[keep])
    assert torch.equal(values[back[keep].long()], values[keep])


def test_overflow_saturates_or_is_infinity_or_nan():
    x = torch.tensor([449.0, 464.0, 480.0, -1e9, math.inf])
    assert round_to_grid(x, E4M3, saturate=False).isnan().tolist() == [False, False, True, True, True]
    assert round_to_grid(torch.tensor([6e4, -7e4]), E5M2, saturate=False).tolist() == [57344.0, -math.inf]
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


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="float32, not torch.bfloat16"):
        round_to_grid(torch.ones(2, dtype=torch.bfloat16), E4M3)
