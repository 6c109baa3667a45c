"""Does training with this recipe reach the loss of BF16?

The margin is in golden/policy.toml.
"""

import pytest


@pytest.mark.golden
def test_loss_parity(trained_cell, parity):
    parity.loss_parity(trained_cell)
