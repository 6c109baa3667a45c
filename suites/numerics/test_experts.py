"""Are the grouped GEMMs of experts correct, expert by expert?

Models with experts run if they are named. The limits are in golden/policy.toml.
"""


def test_experts(expert_cell, parity):
    """Check SQNR and gain of the three GEMMs of each expert.

    An expert without a token has a gradient of exact zero.
    """
    parity.numerics("experts", expert_cell)
