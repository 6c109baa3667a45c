"""Is a training step as fast, relative to BF16, as its golden says?

It may use no more memory. The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_training_step(timed_cell, parity):
    parity.throughput(timed_cell)
