"""Checks for errors that only a GPU shows: short accumulators, offsets beyond 32 bits, FP8 attention. Limits: golden/policy.toml."""

import pytest


def test_accumulation(recipe_cell, parity):
    """The results have no bias that grows with K. The operands are exact in every format, so only accumulation can cause an error."""
    parity.numerics("accumulation", recipe_cell)


@pytest.mark.kernels
def test_large(recipe_cell, parity):
    """The results of tensors with more than 2**31 elements are correct: every repeated block equals the first block, to the bit."""
    parity.numerics("large", recipe_cell)


@pytest.mark.quantized
@pytest.mark.kernels
def test_attention(recipe_cell, parity):
    """FP8 attention runs if the package supports it. Its output and gradients differ from FP64 only by the noise of FP8."""
    parity.numerics("attention", recipe_cell)


@pytest.mark.kernels
def test_modes(cell, parity):
    """A step that is compiled, graphed or both gives the gradient of an eager step."""
    parity.numerics("modes", cell)


@pytest.mark.kernels
def test_autotune(cell, parity):
    """A compiled block computes the same as the eager block, in every kernel configuration that Inductor may choose."""
    parity.numerics("autotune", cell)
