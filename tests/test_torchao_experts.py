"""torchao's grouped GEMMs: the adapter gives the bits that ``quantize_`` gives, and the codes of this project's emulation."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fp8parity.numerics.formats import E4M3
from fp8parity.numerics.operands import sqnr
from fp8parity.numerics.scaling import quantize
from fp8parity.recipes import RECIPES, ConvertedModel, Recipe, apply
from fp8parity.recipes.adapters import torchao_prototype
from fp8parity.recipes.adapters.torchao_prototype import GroupedLinears, config_for, described
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.experts import ExpertLinears
from narrowed import some
from te_stand_in import Primary, rounded
from te_stand_in import stand_in as stand_in
from test_grouped import MIXED, groups, normal, passed
from torch import Tensor, nn
from torchao.prototype.moe_training import utils
from torchao.quantization import quantize_

COUNTS = (64, 32, 96)
N, K = 96, 64


def experts() -> ExpertLinears:
    made = ExpertLinears(len(COUNTS), K, N).bfloat16()
    with torch.no_grad():
        for i, weight in enumerate(made.weights):
            weight.copy_(normal(f"w{i}", N, K) * 2.0 ** (-3 * i))
    return made


def converted(execution: str = "emulated", recipe: str = "ao-mxfp8") -> ExpertLinears:
    holder = nn.Module()
    holder.up_proj = experts()
    found = apply(holder, RECIPES[recipe], Execution(execution), tokens=32).model.get_submodule("up_proj")
    assert isinstance(found, ExpertLinears)
    return found


def one_pass(module: ExpertLinears) -> list[Tensor]:
    x, dy = normal("x", sum(COUNTS), K), normal("dy", sum(COUNTS), N)
    return passed(module, module.weights, x, dy, groups=groups(COUNTS))


class ByQuantize(nn.Module):
    """What a user of torchao has: one weight of all experts [experts, N, K], which ``torch._grouped_mm`` reads."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack(experts().weights).detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return torch._grouped_mm(x, self.weight.transpose(-2, -1), offs=groups(COUNTS).ends)


def test_bits_are_those_of_quantize():
    module = converted()
    assert type(module) is GroupedLinears
    y, dx, *dw = one_pass(module)
    theirs = ByQuantize()
    quantize_(theirs, config_for(RECIPES["ao-mxfp8"], emulate=True), filter_fn=lambda m, fqn: m is theirs)
    assert "MXFP8" in type(theirs.weight.data).__name__
    x = normal("x", sum(COUNTS), K).requires_grad_()
    out = theirs(x)
    out.backward(normal("dy", sum(COUNTS), N))
    assert torch.equal(y, out)
    assert torch.equal(dx, some(x.grad))
    assert torch.equal(torch.stack(dw), some(theirs.weight.grad))


def test_mxfp8_experts_equal_the_core(eager):
    """The operands are the same, so only the order of sums and the BF16 result differ. Weights are 8 and 64 times smaller from expert to
    expert: with the scale of a neighbor, nothing would be left."""
    ours, theirs = (one_pass(module) for module in (converted("core"), converted()))
    of_experts = [
        part
        for pair in zip(ours[:2], theirs[:2], strict=True)
        for part in zip(*(t.split(COUNTS) for t in pair), strict=True)
    ]
    for a, b in [*of_experts, *zip(ours[2:], theirs[2:], strict=True)]:
        assert sqnr(a, b) > 50


@pytest.mark.parametrize("columns", [False, True], ids=["rowwise", "colwise"])
def test_rowwise_codes_of_groups_equal_the_core(columns):
    """torchao tests its Triton kernels of wgrad with these functions. dy^T is scaled by rows of each group, x by columns."""
    matrix = normal("dy", sum(COUNTS), N) * torch.exp2(torch.arange(sum(COUNTS)) % 7)[:, None]
    if columns:
        column_major = matrix.t().contiguous().t()
        codes, scales = utils.torch_to_float8_per_group_colwise(
            column_major, groups(COUNTS).ends, torch.float8_e4m3fn, True
        )
        codes = codes.t()
    else:
        codes, scales = utils.torch_to_float8_per_group_rowwise(
            matrix.t().contiguous(), groups(COUNTS).ends, torch.float8_e4m3fn, True
        )
    op = RECIPES["ao-rowwise"].linear.wgrad_dy
    for part, theirs, scale in zip(
        matrix.split(COUNTS), codes.split(COUNTS, 1), scales.view(len(COUNTS), N), strict=True
    ):
        ours = quantize(part.t().contiguous(), op)
        assert torch.equal(ours.codes(), theirs.contiguous().view(torch.uint8))
        assert torch.equal(ours.scale.flatten(), scale)
    assert E4M3.max == torch.finfo(torch.float8_e4m3fn).max


def test_native_rowwise_experts_use_the_grouped_gemm(monkeypatch):
    """The kernels need a GPU. This is what they are asked for."""
    asked = []

    def kernel(x: Tensor, weight: Tensor, config: object, offs: Tensor) -> Tensor:
        asked.append((type(config).__name__, tuple(weight.shape), weight.stride(-2), offs.tolist(), offs.dtype))
        return torch.zeros(x.shape[0], weight.shape[2], dtype=x.dtype)

    monkeypatch.setattr(torchao_prototype, "_quantize_then_scaled_grouped_mm", kernel)
    module = converted("native", "ao-rowwise")
    assert isinstance(module, GroupedLinears)
    module(normal("x", sum(COUNTS), K), groups(COUNTS))
    assert asked == [("Float8TrainingOpConfig", (3, K, N), 1, [64, 96, 192], torch.int32)]
    assert described("up", module).config.endswith("wgrad_x: e4m3 row ao-pow2; emulate=False")
    inventory = apply(models.build(MIXED, 0), RECIPES["ao-rowwise"], Execution.NATIVE, tokens=64).inventory
    assert {m.facts["kind of experts"] for m in inventory if ".mlp." in m.fqn} == {"GroupedLinears"}
    assert {m.kind for m in inventory if ".attention." in m.fqn} == {"Float8Linear"}


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


def converted_te(recipe: Recipe = RECIPES["te-current"]) -> ConvertedModel:
    return apply(models.build(MIXED, 0), recipe, Execution.NATIVE, tokens=64)


def test_experts_become_one_module_with_their_weights(te):
    plain = dict(models.build(MIXED, 0).named_parameters())
    found = converted_te()
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
    module = converted_te()
    with module.context(), module.microbatch(True):  # type: ignore[misc]  # TE's adapter has the region
        models.cross_entropy(module.model, *batch)
    assert module.model.get_submodule("layers.1.mlp.gate_proj").calls == [(list, True)]
