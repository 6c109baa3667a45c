"""Are the grouped GEMMs of experts correct, expert by expert? Models with experts run if they are named. Limits: golden/policy.toml."""


def test_experts(expert_cell, parity):
    """SQNR and gain of fprop, dgrad and wgrad of each expert are correct, and an expert without a token has a gradient of exact zero."""
    parity.numerics("experts", expert_cell)
