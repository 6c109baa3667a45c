"""Is a training step of this recipe as fast as its golden says, relative to BF16, and does it use no more memory?

The goldens are in golden/throughput.
"""

import pytest


@pytest.mark.golden
def test_training_step(timed_cell, parity):
    parity.throughput(timed_cell)
