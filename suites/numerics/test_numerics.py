"""Does this recipe produce the numbers that its arithmetic should give? Limits: golden/policy.toml."""

import pytest


@pytest.mark.quantized
def test_codes(recipe_cell, parity):
    """Codes and scales equal those of an independent quantizer, to the bit."""
    parity.numerics("codes", recipe_cell)


def test_gemm_sqnr(recipe_cell, parity):
    """The SQNR, the worst row and column, and the gain of fprop, dgrad and wgrad of one linear are correct on seven operand families."""
    parity.numerics("gemm", recipe_cell)


@pytest.mark.quantized
@pytest.mark.vendor
def test_defaults(recipe_cell, parity):
    """The defaults of the recipe in the installed package equal those of the catalogue."""
    parity.numerics("defaults", recipe_cell)


@pytest.mark.control
def test_canary(cell, parity):
    """The framework's own arithmetic is where it was: FP32 values of every module, gradient and update for fixed weights and batches."""
    parity.numerics("canary", cell)


def test_gradients(cell, parity):
    """Parameter gradients are close to FP32 at an initial and a trained state: SQNR, small half, rows, bias, underflow."""
    parity.numerics("gradients", cell)


def test_layers(cell, parity):
    """Every linear's output and every parameter's gradient are close to FP32 at the trained state. No layer was left in BF16."""
    parity.numerics("layers", cell)


@pytest.mark.quantized
def test_places(cell, parity):
    """Each GEMM of each linear is in FP8 or in BF16 as the recipe says at its place."""
    parity.numerics("places", cell)


def test_state(cell, parity):
    """The state of a recipe stays correct over steps: accumulation, cached weights, recompute, checkpoint."""
    parity.numerics("state", cell)


def test_checkpoint(cell, parity):
    """A run that was saved and loaded takes the step of the run that went on. Weights, scales, masters and moments come back to the bit."""
    parity.numerics("checkpoint", cell)


@pytest.mark.quantized
@pytest.mark.kernels
def test_dispatch(cell, parity):
    """fprop, dgrad and wgrad run on FP8 kernels, by the profiler's names. A silent fall-back trains well, so no other check finds it."""
    parity.numerics("dispatch", cell)
