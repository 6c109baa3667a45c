"""What needs a GPU to go wrong: short accumulators, offsets beyond 32 bits, FP8 attention. Bounds: golden/policy.toml."""

import pytest


def test_accumulation(recipe_cell, parity):
    """No bias that grows with K: the operands are exact in every format, so what is left is accumulation."""
    parity.numerics("accumulation", recipe_cell)


@pytest.mark.kernels
def test_large(recipe_cell, parity):
    """Tensors of more than 2**31 elements: every repeated block of the results equals the first, to the bit."""
    parity.numerics("large", recipe_cell)


@pytest.mark.quantised
@pytest.mark.kernels
def test_attention(recipe_cell, parity):
    """FP8 attention runs where the package says so, and its output and gradients are as far from FP64 as FP8 is."""
    parity.numerics("attention", recipe_cell)


@pytest.mark.kernels
def test_modes(cell, parity):
    """A step compiled, graphed or both gives the gradient of an eager one."""
    parity.numerics("modes", cell)


@pytest.mark.kernels
def test_autotune(cell, parity):
    """Whichever configuration of its kernels Inductor finds fastest, a compiled block computes what the eager one does."""
    parity.numerics("autotune", cell)
