"""Are the GEMMs of a model with this recipe as fast as their golden says, relative to BF16, and did each run as the recipe says?

fprop, dgrad and wgrad of every linear are timed alone and with their casts. The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_gemms(gemm_cell, parity):
    parity.gemms(gemm_cell)
