"""Does a model trained with this recipe reach BF16's loss, within the margin of golden/policy.toml?"""

import pytest


@pytest.mark.golden
def test_loss_parity(cell, parity):
    parity.loss_parity(cell)
