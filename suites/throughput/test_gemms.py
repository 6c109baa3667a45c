"""Are the GEMMs of a model as fast, relative to BF16, as their golden says?

fprop, dgrad and wgrad of every linear are timed alone and with their casts. The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_gemms(gemm_cell, parity):
    parity.gemms(gemm_cell)
