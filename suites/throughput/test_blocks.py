"""Is a transformer block as fast, relative to BF16, as its golden says?

Forward and backward of Llama 3 8B, 70B and 405B. The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_block(block_cell, parity):
    parity.block(block_cell)
