"""Are the numbers that this recipe produces the ones that its arithmetic should give? Bounds: golden/policy.toml."""

import pytest


@pytest.mark.quantised
def test_codes(recipe_cell, parity):
    """Codes and scales equal an independent quantiser's, to the bit."""
    parity.numerics("codes", recipe_cell)


def test_gemm_sqnr(recipe_cell, parity):
    """fprop, dgrad and wgrad of one linear, on seven operand families, two-sided."""
    parity.numerics("gemm", recipe_cell)


@pytest.mark.quantised
@pytest.mark.vendor
def test_defaults(recipe_cell, parity):
    """The installed package means by the recipe's name what the catalogue says."""
    parity.numerics("defaults", recipe_cell)


def test_gradients(cell, parity):
    """Parameter gradients against FP32 at an initial and a trained state: SQNR, small half, rows, bias, underflow."""
    parity.numerics("gradients", cell)


def test_layers(cell, parity):
    """Every linear's output and gradients against FP32 at the trained state: none lost; at tiny, none left in BF16."""
    parity.numerics("layers", cell)


def test_state(cell, parity):
    """Recipe state over steps: accumulation, cached weights, recompute, checkpoint."""
    parity.numerics("state", cell)


@pytest.mark.quantised
@pytest.mark.kernels
def test_dispatch(cell, parity):
    """fprop, dgrad and wgrad run on FP8 kernels, by the profiler's names: a silent fall-back trains well and hides."""
    parity.numerics("dispatch", cell)
