"""Experts in a recipe: each is quantized alone, the inventory names each, torchao's grouped GEMM does the same, and what it cannot take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.numerics import prng
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.recipes import RECIPES, Recipe, apply
from fp8parity.recipes.recipe import Rule
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.dimensions import Experts
from fp8parity.workload.experts import ExpertLinears, TokenGroups
from narrowed import some
from torch import Tensor, nn

MIXED = ModelConfig("mixed", dim=64, layers=2, heads=1, kv_heads=1, hidden=96, init_std=0.1, experts=Experts(4))
SPECS = {
    r.linear: r
    for r in RECIPES.values()
    if r.linear.quantized and not r.rules and not any(op.stochastic for _, op in r.linear)
}
"""A recipe without rules for each spec that rounds without chance."""
COUNTS = (32, 0, 160, 96)
"""Rows of the experts: uneven, one without any, and more than a tile of 128."""


class Holder(nn.Module):
    """The experts of one name as a model."""

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.up_proj = ExpertLinears(len(COUNTS), k, n).bfloat16()
        with torch.no_grad():
            for i, weight in enumerate(self.up_proj.weights):
                weight.copy_(normal(f"w{i}", n, k) * 2.0**-i)  # so that a scale of another expert is wrong


def normal(name: str, rows: int, columns: int) -> Tensor:
    return prng.normal(prng.stream("grouped", name), rows * columns).view(rows, columns).bfloat16()


def groups(counts: tuple[int, ...] = COUNTS) -> TokenGroups:
    return TokenGroups(counts, torch.empty(0), torch.tensor(counts).cumsum(0).int())


def passed(module: nn.Module, weights: list[Tensor], x: Tensor, dy: Tensor, **more: Any) -> list[Tensor]:
    """y, dx and the gradient of each weight after one pass."""
    leaf = x.clone().requires_grad_()
    y = module(leaf, **more)
    y.backward(dy)
    return [y.detach(), some(leaf.grad), *(some(w.grad) for w in weights)]


@pytest.mark.parametrize("recipe", SPECS.values(), ids=lambda r: r.name)
def test_grouped_emulation_equals_each_expert_alone(recipe: Recipe, eager):
    """To the bit, also the second time, when delayed scales are warm. The expert without a row has a gradient of exact zero."""
    n, k = 96, 64
    holder = Holder(n, k)
    alone = [nn.Linear(k, n, bias=False, dtype=torch.bfloat16) for _ in COUNTS]
    for linear, weight in zip(alone, holder.up_proj.weights, strict=True):
        linear.weight = nn.Parameter(weight.detach().clone())
    emulated = [EmulatedLinear(linear, recipe.linear) for linear in alone]
    converted = apply(holder, recipe, Execution.CORE, tokens=32).model.get_submodule("up_proj")
    for turn in range(2):
        x, dy = normal(f"x{turn}", sum(COUNTS), k), normal(f"dy{turn}", sum(COUNTS), n)
        y, dx, *dw = passed(converted, holder.up_proj.weights, x, dy, groups=groups())
        parts = [
            passed(e, [e.weight], a, b) for e, a, b in zip(emulated, x.split(COUNTS), dy.split(COUNTS), strict=True)
        ]
        assert torch.equal(y, torch.cat([part[0] for part in parts]))
        assert torch.equal(dx, torch.cat([part[1] for part in parts]))
        assert all(torch.equal(a, part[2]) for a, part in zip(dw, parts, strict=True))
        assert not dw[1].any()


@pytest.mark.parametrize("recipe", ["te-block", "te-mxfp8", "te-delayed"])
def test_rows_of_zeros_change_nothing(recipe, eager):
    """The padding of an expert, and an expert with nothing but padding: whole tiles of zeros."""
    holder, plain = Holder(96, 64), Holder(96, 64)
    converted, other = (
        apply(h, RECIPES[recipe], Execution.CORE, tokens=32).model.get_submodule("up_proj") for h in (holder, plain)
    )
    x, dy = normal("x", 160, 64), normal("dy", 160, 96)
    kept = torch.cat([torch.arange(0, 100), torch.arange(128, 160)])
    x[100:128], dy[100:128] = 0, 0
    padded = passed(converted, holder.up_proj.weights, x, dy, groups=groups((128, 0, 32, 0)))
    bare = passed(other, plain.up_proj.weights, x[kept], dy[kept], groups=groups((100, 0, 32, 0)))
    assert torch.equal(padded[0][kept], bare[0])
    assert torch.equal(padded[1][kept], bare[1])
    assert all(torch.equal(a, b) for a, b in zip(padded[2:], bare[2:], strict=True))
    assert not any(t.any() for t in (padded[0][100:128], padded[1][100:128], padded[3], padded[5]))


@pytest.mark.parametrize("recipe", ["te-current", "ao-tensorwise", "ao-rowwise-gw-hp", "ao-mxfp8"])
def test_inventory_names_every_expert(recipe, eager):
    converted = apply(models.build(MIXED, 0), RECIPES[recipe], Execution.EMULATED, tokens=64)
    names = {m.fqn for m in converted.inventory}
    assert len(names) == len(converted.inventory) == 2 * (4 + 3 * 4)
    assert {f"layers.1.mlp.down_proj.{i}" for i in range(4)} < names
    assert not any("router" in name for name in names)
    loss = models.cross_entropy(converted.model, *torch.arange(2 * 128).view(2, 2, 64))
    loss.backward()
    assert all(p.grad is not None for p in converted.model.parameters())


def test_rows_that_a_grouped_gemm_cannot_take_are_refused():
    narrow = replace(MIXED, experts=Experts(4, pad=16))
    apply(models.build(narrow, 0), RECIPES["te-current"], Execution.EMULATED, tokens=64)
    with pytest.raises(
        ValueError,
        match="ao-mxfp8: the rows of an expert of layers.0.mlp are padded to a multiple of 16, .* set pad=32",
    ):
        apply(models.build(narrow, 0), RECIPES["ao-mxfp8"], Execution.EMULATED, tokens=64)
    with pytest.raises(ValueError, match="ao-mxfp8: layers.0.mlp.gate_proj.0.out_features = 80 is not divisible by 32"):
        apply(models.build(replace(MIXED, hidden=80), 0), RECIPES["ao-mxfp8"], Execution.EMULATED, tokens=64)


def test_rule_about_one_grouped_expert_is_refused():
    rule = Rule(names=("down_proj.1",))
    with pytest.raises(
        ValueError,
        match="one grouped GEMM computes all experts of layers.0.mlp.down_proj, and a rule is about some of them",
    ):
        apply(models.build(MIXED, 0), replace(RECIPES["ao-mxfp8"], rules=(rule,)), Execution.EMULATED, tokens=64)
    left = apply(
        models.build(MIXED, 0),
        replace(RECIPES["ao-mxfp8"], rules=(Rule(names=("down_proj",)),)),
        Execution.EMULATED,
        tokens=64,
    )
    assert not any("down_proj" in m.fqn for m in left.inventory)
