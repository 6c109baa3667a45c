"""Is a transformer block (forward and backward) of Llama 3 8B, 70B and 405B as fast as its golden says, relative to BF16 of its form?

The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_block(block_cell, parity):
    parity.block(block_cell)
