"""The emulated linear at shapes around the edges of tiles, drawn at random: each GEMM is the product of its dequantized operands."""

from __future__ import annotations

import pytest
import torch
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.scaling import quantize
from fp8parity.recipes import RECIPES
from hypothesis import given, settings
from hypothesis import strategies as st
from narrowed import some
from torch import nn

SIZES = st.sampled_from([16, 32, 48, 112, 128, 144, 160, 240, 256, 272])
"""Multiples of 16 on both sides of the tiles of 32 and of 128."""
ODD = st.sampled_from([1, 15, 17, 31, 33, 127, 129])
"""Sizes that no kernel takes. The emulation pads its tiles."""
SPECS = {
    r.linear: r.name
    for r in RECIPES.values()
    if r.linear.quantized and not any(op.history or op.stochastic for _, op in r.linear)
}
"""Recipes without state and without chance, one for each spec."""
ROUNDING = 2**-7
"""A result is rounded to BF16, and once more where an FP32 scale of the whole tensor follows: each rounding is at most 2**-8."""


@pytest.fixture(autouse=True)
def uncompiled(eager: None) -> None:
    """Each new shape would be compiled anew."""


def worst_error(recipe: str, m: int, k: int, n: int, seed: int) -> dict[str, float]:
    """The largest error of each GEMM, divided by the largest result."""
    generator = torch.Generator().manual_seed(seed)
    x, w, dy = (torch.randn(s, generator=generator).bfloat16() for s in ((m, k), (n, k), (m, n)))
    linear = nn.Linear(k, n, bias=False, dtype=torch.bfloat16)
    linear.weight.data.copy_(w)
    spec = RECIPES[recipe].linear
    leaf = x.clone().requires_grad_()
    y = EmulatedLinear(linear, spec)(leaf)
    y.backward(dy)

    def value(name: str, t: torch.Tensor) -> torch.Tensor:
        """What an operand stands for, as rows of the inner dimension."""
        op = getattr(spec, name)
        if op.dequantized:  # BF16 of what fprop read of the same tensor
            return value("fprop_w" if name == "dgrad_w" else "fprop_x", t.T).bfloat16().float().T
        return quantize(t.contiguous(), op).dequantize() if op.quantized else t.float()

    def product(a: str, left: torch.Tensor, b: str, right: torch.Tensor) -> torch.Tensor:
        return value(a, left).double() @ value(b, right).double().T

    wanted = {
        "fprop": product("fprop_x", x, "fprop_w", w),
        "dgrad": product("dgrad_dy", dy, "dgrad_w", w.T),
        "wgrad": product("wgrad_dy", dy.T, "wgrad_x", x.T),
    }
    found = {"fprop": y.detach(), "dgrad": some(leaf.grad), "wgrad": some(linear.weight.grad)}
    return {g: float((found[g].double() - wanted[g]).abs().max() / wanted[g].abs().max()) for g in wanted}


@pytest.mark.parametrize("recipe", SPECS.values())
@settings(max_examples=4, deadline=None)
@given(m=SIZES, k=SIZES, n=SIZES, seed=st.integers(0, 2**31))
def test_each_gemm_is_the_product_of_its_dequantized_operands(recipe, m, k, n, seed):
    assert max(worst_error(recipe, m, k, n, seed).values()) < ROUNDING


@settings(max_examples=8, deadline=None)
@given(m=ODD, k=ODD, n=ODD, seed=st.integers(0, 2**31))
@pytest.mark.parametrize("recipe", ["te-block", "te-mxfp8", "te-mxfp8-2d", "ao-rowwise"])
def test_tiles_are_padded_at_sizes_that_no_kernel_takes(recipe, m, k, n, seed):
    assert max(worst_error(recipe, m, k, n, seed).values()) < ROUNDING
