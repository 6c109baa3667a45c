"""Are the numbers that this recipe produces the ones that its arithmetic should give? Bounds: golden/tolerances.toml."""

import pytest


@pytest.mark.quantised
def test_codes(recipe_cell, road):
    """Codes and scales equal an independent quantiser's, to the bit."""
    road.numerics("codes", recipe_cell)


def test_gemm_sqnr(recipe_cell, road):
    """fprop, dgrad and wgrad of one linear, on seven operand families, two-sided."""
    road.numerics("gemm", recipe_cell)


@pytest.mark.quantised
@pytest.mark.vendor
def test_defaults(recipe_cell, road):
    """The installed package means by the recipe's name what the catalogue says."""
    road.numerics("defaults", recipe_cell)


def test_gradients(cell, road):
    """Parameter gradients against FP32 at an initial and a trained state: SQNR, small half, rows, bias, underflow."""
    road.numerics("gradients", cell)


def test_layers(cell, road):
    """Every linear's output and gradients against FP32 at the trained state: none lost; at tiny, none left in BF16."""
    road.numerics("layers", cell)


def test_state(cell, road):
    """Recipe state over steps: accumulation, cached weights, recompute, checkpoint."""
    road.numerics("state", cell)


@pytest.mark.quantised
@pytest.mark.kernels
def test_dispatch(cell, road):
    """fprop, dgrad and wgrad run on FP8 kernels, by the profiler's names: a silent fall-back trains well and hides."""
    road.numerics("dispatch", cell)
