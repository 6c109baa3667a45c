"""Does a model that is trained with this recipe reach the loss of BF16, within the margin of golden/policy.toml?"""

import pytest


@pytest.mark.golden
def test_loss_parity(trained_cell, parity):
    parity.loss_parity(trained_cell)
