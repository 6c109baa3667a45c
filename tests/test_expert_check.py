"""The check of grouped experts: sound recipes are green, and a fault of one expert is red there, with the blame on the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults.fault import Blame, seen_of
from faults.places import converted, expert_in_bf16, neighbors_scale, unwritten_gradient
from fp8parity.checks import experts
from fp8parity.judging.verdict import Verdict
from fp8parity.recipes.adapters import torchao_experts
from fp8parity.recipes.matrix import linear_cells
from narrowed import some
from sessions import Session, cell

Judge = Callable[[str], Verdict]


@pytest.fixture
def judge(session: Session, eager) -> Judge:
    """The verdict on the check of a recipe, on the emulation that its cells run."""
    return lambda recipe: session.numerics(
        "experts", cell(recipe, "native" if recipe == "bf16" else "emulated", "tiny-moe")
    )


def red(verdict: Verdict) -> dict[str, set[str]]:
    """The experts (or GEMMs, of an idle result) that are red, by metric. The blame is on the recipe."""
    assert verdict.status == "fail"
    assert seen_of(verdict).blame == Blame.RECIPE
    found: dict[str, set[str]] = {}
    for number in verdict.failing:
        found.setdefault(number.metric, set()).add(number.where)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted({c.recipe for c in linear_cells()}))
def test_sound_experts_pass(recipe, judge):
    verdict = judge(recipe)
    assert verdict.status == "pass", verdict.message()


@pytest.mark.parametrize(
    ("operand", "gemms"),
    [("fprop_x", {"fprop", "wgrad"}), ("fprop_w", {"fprop", "dgrad"}), ("dgrad_dy", {"dgrad", "wgrad"})],
)
def test_scale_of_a_neighbor_fails_at_the_expert(operand, gemms, judge, monkeypatch):
    """Current scaling has one scale for each operand of an expert, which both of its GEMMs read."""
    neighbors_scale(operand)(monkeypatch)
    busy = {f"expert {i}" for i, tokens in enumerate(experts.TOKENS) if tokens}
    assert red(judge("te-current")) == {f"{gemm} expert {what}": busy for gemm in gemms for what in ("sqnr", "gain")}


def test_blocks_across_two_experts_fail(session, judge, monkeypatch):
    """MXFP8 of torchao with experts of 16 more rows: without the refusal, a block of 32 rows has a scale for two experts in wgrad."""
    preset = session.preset("tiny-moe")
    narrow = replace(preset.model, experts=replace(some(preset.model.experts), pad=16))
    monkeypatch.setitem(session.presets, "tiny-moe", replace(preset, model=narrow))
    with pytest.raises(ValueError, match="takes a multiple of 32 rows for each expert, and expert 0 has 208"):
        judge("ao-mxfp8")
    monkeypatch.setitem(torchao_experts.MULTIPLE, torchao_experts.MXFP8TrainingOpConfig, 16)
    found = red(judge("ao-mxfp8"))
    assert found.keys() == {"wgrad expert sqnr", "wgrad expert gain"}
    assert found["wgrad expert sqnr"] == {
        "expert 0",
        "expert 7",
    }  # the last of their rows share a block with larger ones


def test_unwritten_gradient_of_an_idle_expert_fails(judge, monkeypatch):
    unwritten_gradient(monkeypatch)
    assert red(judge("te-current")) == {"idle result": {"wgrad"}}


def test_expert_left_in_bf16_fails(judge, monkeypatch):
    """Too good is a fault, too."""
    converted(expert_in_bf16, experts)(monkeypatch)
    found = red(judge("te-current"))
    assert found == {f"{gemm} expert sqnr": {"expert 3"} for gemm in ("fprop", "dgrad", "wgrad")}
