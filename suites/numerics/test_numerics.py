"""Does this recipe produce the numbers that its arithmetic should give?

The limits are in golden/policy.toml.
"""

import pytest


@pytest.mark.quantized
def test_codes(recipe_cell, parity):
    """Compare codes and scales with an independent quantizer, to the bit."""
    parity.numerics("codes", recipe_cell)


def test_gemm_sqnr(recipe_cell, parity):
    """Check SQNR, worst row and column, and gain of the three GEMMs of one linear."""
    parity.numerics("gemm", recipe_cell)


@pytest.mark.quantized
@pytest.mark.vendor
def test_defaults(recipe_cell, parity):
    """Compare the defaults of the installed package with the catalogue."""
    parity.numerics("defaults", recipe_cell)


@pytest.mark.control
def test_canary(cell, parity):
    """Compare BF16's training steps with stored values, a recipe's with their replay.

    Of every module, gradient and update. The replay takes the results of the quantized linears from the recipe's steps.
    """
    parity.numerics("canary", cell)


def test_gradients(cell, parity):
    """Compare parameter gradients with FP32 at an initial and a trained state."""
    parity.numerics("gradients", cell)


def test_layers(cell, parity):
    """Compare every layer's output and gradient with FP32 at the trained state."""
    parity.numerics("layers", cell)


@pytest.mark.quantized
def test_places(cell, parity):
    """Check that each GEMM of each linear is in FP8 or BF16 as the recipe says."""
    parity.numerics("places", cell)


def test_state(cell, parity):
    """Check the state over steps: accumulation, cached weights, reload, evaluation."""
    parity.numerics("state", cell)


def test_twins(cell, parity):
    """Compare a step with an option switched on with the same step without it."""
    parity.numerics("twins", cell)


def test_checkpoint(cell, parity):
    """Compare the next step of a loaded run with that of the run that went on."""
    parity.numerics("checkpoint", cell)


@pytest.mark.quantized
@pytest.mark.kernels
def test_dispatch(cell, parity):
    """Check that fprop, dgrad and wgrad run on FP8 kernels, by the profiler's names.

    A silent fall-back trains well, so no other check finds it.
    """
    parity.numerics("dispatch", cell)
