"""Experts with TE's GroupedLinear on a stand-in for the package: calls, names of parameters, inventory, weight cache, quantized weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.recipes import RECIPES, ConvertedModel, Recipe, apply
from fp8parity.recipes.recipe import Rule
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from te_stand_in import Primary, rounded
from te_stand_in import stand_in as stand_in
from test_grouped import MIXED
from torch import Tensor, nn


def grouped_linear(outer: Any) -> type[nn.Module]:
    """As the stand-in's Linear: each expert has a weight, and its rows have a scale of their own."""

    class GroupedLinear(nn.Module):
        def __init__(self, num_gemms, in_features, out_features, bias, params_dtype, device):
            super().__init__()
            assert not bias
            self.num_gemms, self.calls = num_gemms, []
            for i in range(num_gemms):
                weight = torch.zeros(out_features, in_features, dtype=params_dtype, device=device)
                self.register_parameter(
                    f"weight{i}", nn.Parameter(weight.as_subclass(Primary) if outer.primary else weight)
                )

        def forward(self, inp: Tensor, m_splits: list[int], is_first_microbatch: bool | None = None) -> Tensor:
            assert outer.recipe is not None
            self.calls.append((type(m_splits), is_first_microbatch))
            weights = [self.get_parameter(f"weight{i}").as_subclass(Tensor) for i in range(self.num_gemms)]
            found = []
            for weight, x in zip(weights, inp.split(m_splits), strict=True):
                found.append(F.linear(x + (rounded(x) - x).detach(), weight + (rounded(weight) - weight).detach()))
            return torch.cat(found)

    return GroupedLinear


@pytest.fixture
def te(stand_in, monkeypatch):
    """The stand-in with a GroupedLinear that computes."""
    monkeypatch.setattr(
        sys.modules["transformer_engine.pytorch"], "GroupedLinear", grouped_linear(stand_in), raising=False
    )
    return stand_in


def converted(recipe: Recipe = RECIPES["te-current"]) -> ConvertedModel:
    return apply(models.build(MIXED, 0), recipe, Execution.NATIVE, tokens=64)


def test_experts_become_one_module_with_their_weights(te):
    plain = dict(models.build(MIXED, 0).named_parameters())
    found = converted()
    experts = found.model.get_submodule("layers.0.mlp.up_proj")
    assert type(experts).__name__ == "GroupedLinear"
    assert vars(experts)["name"] == "layers.0.mlp.up_proj"
    weights = found.original(dict(found.model.named_parameters()))
    assert list(weights) != list(dict(found.model.named_parameters()))
    assert set(weights) == set(plain)
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    facts = {m.fqn: m.facts for m in found.inventory}
    assert len(facts) == 2 * (4 + 3 * 4)
    assert facts["layers.1.mlp.down_proj.3"]["kind of experts"] == "te.GroupedLinear"
    assert facts["layers.1.attention.q_proj"]["kind"] == "te.Linear"


def test_loss_of_grouped_experts_equals_the_emulations(te, eager):
    """The stand-in rounds as current scaling does. So each expert has scales of its own, in the right order."""
    batch = torch.arange(2 * 128).view(2, 2, 64)
    losses = []
    for execution in (Execution.NATIVE, Execution.EMULATED):
        found = apply(models.build(MIXED, 0), RECIPES["te-current"], execution, tokens=64)
        with torch.no_grad(), found.context():
            losses.append(float(models.cross_entropy(found.model, *batch)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    module = converted()
    with module.context(), module.microbatch(True):  # type: ignore[misc]  # TE's adapter has the region
        models.cross_entropy(module.model, *batch)
    assert module.model.get_submodule("layers.1.mlp.gate_proj").calls == [(list, True)]


def test_rule_about_one_expert_is_refused(te):
    with pytest.raises(
        ValueError,
        match="one grouped GEMM computes all experts of layers.0.mlp.up_proj, and a rule is about some of them",
    ):
        converted(replace(RECIPES["te-current"], rules=(Rule(names=("up_proj.1",)),)))
    left = converted(replace(RECIPES["te-current"], rules=(Rule(names=("up_proj",), blocks=(0,)),)))
    assert not any(m.fqn.startswith("layers.0.mlp.up_proj") for m in left.inventory)
