"""Is a training step with this recipe still as much faster than BF16's, on this GPU, and no larger? Goldens: golden/throughput."""

import pytest


@pytest.mark.golden
def test_training_step(timed_cell, parity):
    parity.throughput(timed_cell)
