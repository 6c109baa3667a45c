"""The plan of tokens that go to experts on other ranks, without ranks."""

from __future__ import annotations

import pytest
import torch
from fp8parity import recipes
from fp8parity.distributed import exchange
from fp8parity.distributed.exchange import IDLE, LOCAL, PAD

CPU = torch.device("cpu")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_token_has_a_row_of_its_own(ranks):
    """What one rank sends another receives; an expert without tokens has no row, and each other expert padded ones."""
    plans = [exchange.plan(rank, ranks, CPU) for rank in range(ranks)]
    assert [[p.sent[r] for p in plans] for r in range(ranks)] == [p.received for p in plans]
    for rank, at in enumerate(plans):
        totals = [sum(exchange.counts_of(r, ranks)[rank * LOCAL + e] for r in range(ranks)) for e in range(LOCAL)]
        assert (
            at.rows
            == sum(-(-n // PAD) * PAD for n in totals)
            > len(at.places)
            == sum(totals)
            == len(set(at.places.tolist()))
        )
        assert (0 in totals) == (rank == IDLE // LOCAL)


@pytest.mark.parametrize("recipe", ["ao-mxfp8", "ao-rowwise", "ao-tensorwise", "te-block"])
def test_codes_and_scales_give_the_dequantized_tokens(recipe):
    operand = recipes.get(recipe).linear.fprop_x
    codes, scales, tokens = exchange.coded(exchange.draw(0, 2, CPU), operand)
    assert torch.equal(exchange.decoded(codes, scales, operand), tokens)
    assert scales.dtype == (torch.uint8 if recipe == "ao-mxfp8" else torch.float32)
