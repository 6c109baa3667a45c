"""The check of grouped experts: sound recipes pass, blocks across experts fail (other faults: faults/places.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults.fault import Blame, seen_of
from fp8parity.judging.verdict import Verdict
from fp8parity.recipes.adapters import torchao_prototype
from fp8parity.recipes.registry import linear_cells
from narrowed import some
from sessions import Session, cell


@pytest.fixture
def judge(session: Session, eager) -> Callable[[str], Verdict]:
    """The verdict on the check of a recipe, on the emulation that its cells run."""
    execution = {"bf16": "native"}
    return lambda recipe: session.numerics("experts", cell(recipe, execution.get(recipe, "emulated"), "tiny-moe"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", sorted({c.recipe for c in linear_cells()}))
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
