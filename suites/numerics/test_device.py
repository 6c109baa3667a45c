"""Checks for errors that only a GPU shows. The limits are in golden/policy.toml."""

import pytest


def test_accumulation(recipe_cell, parity):
    """Look for a bias that grows with K.

    The operands are exact in every format, so only accumulation can cause an error.
    """
    parity.numerics("accumulation", recipe_cell)


@pytest.mark.kernels
def test_large(recipe_cell, parity):
    """Compute tensors of over 2**31 elements: all repeated blocks must be equal."""
    parity.numerics("large", recipe_cell)


@pytest.mark.kernels
def test_attention(recipe_cell, parity):
    """Compare attention and its gradients with FP64: FP8, and BF16 of each backend."""
    parity.numerics("attention", recipe_cell)


@pytest.mark.kernels
def test_modes(cell, parity):
    """Compare the gradient of a compiled or graphed step with an eager step."""
    parity.numerics("modes", cell)


@pytest.mark.kernels
def test_autotune(cell, parity):
    """Compare a compiled block with the eager one in all of Inductor's choices."""
    parity.numerics("autotune", cell)
