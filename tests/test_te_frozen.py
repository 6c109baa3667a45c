"""Frozen and tied weights in Transformer Engine's modules, on a stand-in for the package."""

from __future__ import annotations

import pytest
from fp8parity import recipes
from fp8parity.recipes.conversion import apply
from fp8parity.records.cell import Execution
from own_models import Pair
from te_stand_in import stand_in as stand_in


def test_a_frozen_linear_stays_frozen_and_a_tied_one_is_refused(stand_in):
    """TE's module has parameters of its own. What is frozen in the linear is frozen there; what was tied is a copy."""
    model = Pair(tied=False).bfloat16()
    model.inner.bias.requires_grad_(False)
    converted = apply(model, recipes.get("te-current"), Execution.NATIVE, tokens=16).model
    assert [n for n, p in converted.named_parameters() if not p.requires_grad] == ["inner.bias"]
    with pytest.raises(
        ValueError,
        match="te-current: embedding.weight and unembed.weight are tied, and the converted modules hold copies",
    ):
        apply(Pair().bfloat16(), recipes.get("te-current"), Execution.NATIVE, tokens=16)
