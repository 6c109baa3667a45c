"""Mixture of experts: the layer against a plain loop over tokens, its fixed and free routing, experts without a token, wrong numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from documents import RECIPES as PAGE
from documents import example
from faults.fault import Blame, seen_of
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics import prng
from fp8parity.recipes import RECIPES
from fp8parity.recipes.adapters import torchao_prototype
from fp8parity.records.cell import Execution, Mode
from fp8parity.training.loop import train
from fp8parity.workload import corpus, models
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.dimensions import Experts, Routing
from fp8parity.workload.experts import ExpertLinears, TokenGroups, fixed_choice
from fp8parity.workload.mixture import MixtureOfExperts
from fp8parity.workload.presets import presets
from narrowed import some
from sessions import Session, cell

MIXED = ModelConfig("mixed", dim=32, layers=2, heads=1, kv_heads=1, hidden=64, init_std=0.2, experts=Experts(4))


def layer(config: ModelConfig = MIXED, number: int = 0) -> MixtureOfExperts:
    found = models.build(config, 0).get_submodule(f"layers.{number}.mlp")
    assert isinstance(found, MixtureOfExperts)
    return found


def tokens(count: int = 24, dim: int = 32) -> torch.Tensor:
    return prng.normal(7, count * dim).view(1, count, dim)


@pytest.mark.parametrize("routing", Routing)
def test_layer_is_the_weighted_sum_of_mlps(routing):
    """A loop over tokens in FP64, with the experts that the layer chose."""
    moe = layer(replace(MIXED, experts=Experts(4, top_k=3, routing=routing))).double()
    x = tokens().double()
    logits = x[0] @ moe.router.weight.T
    chosen, _ = moe.route(logits)
    wanted = torch.zeros_like(x[0])
    for t, experts in enumerate(chosen.tolist()):
        for e, share in zip(experts, logits[t, experts].softmax(0), strict=True):
            gate, up, down = (linears[e].weight for linears in (moe.gate_proj, moe.up_proj, moe.down_proj))
            wanted[t] += share * (down @ (F.silu(gate @ x[0, t]) * (up @ x[0, t])))
    torch.testing.assert_close(moe(x)[0], wanted, rtol=1e-5, atol=1e-6)  # the router and the sum are in FP32
    if routing == Routing.FREE:
        assert torch.equal(chosen.sort(1).values, logits.topk(3, 1).indices.sort(1).values)


def test_fixed_routing_is_pinned():
    """Other draws would be another model under the same name. Every expert of a token is another one, and experts differ in their rows."""
    experts = some(presets()["tiny-moe"].model.experts)
    found = [fixed_choice(experts, block, 2048) for block in (0, 1)]
    assert [torch.bincount(chosen.flatten()).tolist() for chosen in found] == [
        [100, 154, 229, 377, 540, 727, 903, 1066],
        [1169, 96, 164, 249, 360, 493, 672, 893],
    ]
    assert found[0][:4].tolist() == [[5, 6], [4, 2], [7, 4], [7, 5]]
    assert all((chosen[:, 0] != chosen[:, 1]).all() for chosen in found)
    assert torch.equal(fixed_choice(experts, 0, 512), found[0][:512])


def test_expert_without_a_token_has_zero_gradient():
    """In BF16 without any padding, where it has no row, and with a padding, where its rows are zero."""
    chosen = torch.tensor([0, 2, 2])[:, None]
    for counts in ((1, 0, 2), TokenGroups.of(chosen, Experts(3, top_k=1, pad=16)).counts):
        linears = ExpertLinears(3, 16, 32).bfloat16()
        x = torch.zeros(sum(counts), 16, dtype=torch.bfloat16)
        x[0], x[-counts[-1]] = 1, 2
        y = linears(x.requires_grad_(), TokenGroups(counts, torch.empty(0), torch.empty(0)))
        y.sum().backward()
        gradients = [some(w.grad) for w in linears.weights]
        assert [bool(g.any()) for g in gradients] == [True, False, True]
        assert y.shape == (sum(counts), 32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Experts(4, top_k=5), "top_k = 5 of 4 experts: a token goes to at least 1 and at most 4 of them"),
        (lambda: Experts(4, top_k=0), "top_k = 0 of 4 experts: a token goes to at least 1"),
        (lambda: Experts(4, pad=0), "pad = 0: an expert has at least 1 row"),
        (lambda: Experts(4, top_k=1, routing=Routing.FREE), "a free router with top_k = 1 learns nothing"),
        (lambda: models.outline(replace(MIXED, bias=True)), "mixed: experts have no biases; leave bias or experts out"),
    ],
)
def test_wrong_numbers_are_one_line(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


def test_initial_weights_of_a_mixture_are_pinned():
    model = models.build(presets()["tiny-moe"].model, 0)
    assert models.weights_hash(dict(model.named_parameters())).startswith("61298dd5e0554d39")
    up, down = (model.get_parameter(f"layers.1.mlp.{name}_proj.5.weight").float() for name in ("up", "down"))
    assert float(up.detach().std()) == pytest.approx(0.07, rel=0.02)
    assert float(down.detach().std()) == pytest.approx(0.07 / 2, rel=0.02)  # divided by the root of twice the blocks


def test_free_routing_in_a_graph_is_refused(monkeypatch):
    free = layer(replace(MIXED, experts=Experts(4, routing=Routing.FREE)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(ValueError, match="which no CUDA graph can do; use --mode eager or compiled"):
        free.route(torch.zeros(8, 4))
    layer().route(torch.zeros(8, 4))


@pytest.mark.slow
def test_free_routing_of_the_page_trains(eager):
    """The model that the page shows, with shorter steps. The router learns, and FP8 sends some tokens to other experts than BF16."""
    [preset] = example(1, PAGE).pytest_fp8parity_models()
    assert preset.model.experts.routing == Routing.FREE
    schedule = replace(preset.schedule, steps=3, rows=1, length=64, warmup=1, tail=1, validation_rows=1)
    runs = [
        train(preset.model, RECIPES[name], Execution(e), schedule, corpus.load("topics"), 0, device=torch.device("cpu"))
        for name, e in (("bf16", "native"), ("te-current", "emulated"))
    ]
    assert all(run.mode == Mode.EAGER and run.non_finite is None and math.isfinite(run.loss[-1]) for run in runs)
    assert all(run.first_gradients["layers.0.mlp.router.weight"] > 0 for run in runs)
    assert runs[0].loss != runs[1].loss
    assert runs[0].initial_weights == runs[1].initial_weights


@pytest.fixture
def judge(session: Session, eager) -> Callable[[str], Verdict]:
    """The verdict on the check of a recipe, on the emulation that its cells run."""
    execution = {"bf16": "native"}
    return lambda recipe: session.numerics("experts", cell(recipe, execution.get(recipe, "emulated"), "tiny-moe"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "te-delayed", "te-nvfp4", "ao-rowwise-gw-hp", "ao-mxfp8"])
def test_sound_experts_pass(recipe, judge):
    verdict = judge(recipe)
    assert verdict.status == "pass", verdict.message()


def test_blocks_across_two_experts_fail(session, judge, monkeypatch):
    """MXFP8 of torchao with experts of 16 more rows: without the refusal, a block of 32 rows has a scale for two experts in wgrad."""
    preset = session.preset("tiny-moe")
    narrow = replace(preset.model, experts=replace(some(preset.model.experts), pad=16))
    monkeypatch.setitem(session.presets, "tiny-moe", replace(preset, model=narrow))
    with pytest.raises(ValueError, match="takes a multiple of 32 rows for each expert, and expert 0 has 208"):
        judge("ao-mxfp8")
    monkeypatch.setitem(torchao_prototype.MULTIPLE, torchao_prototype.MXFP8TrainingOpConfig, 16)
    verdict = judge("ao-mxfp8")
    found = {(number.metric, number.where) for number in verdict.failing}
    assert verdict.status == "fail" and seen_of(verdict).blame == Blame.RECIPE
    # The last rows of these experts share a block with larger ones.
    assert {where for metric, where in found if metric == "wgrad expert sqnr"} == {"expert 0", "expert 7"}
    assert {metric for metric, _ in found} == {"wgrad expert sqnr", "wgrad expert gain"}
