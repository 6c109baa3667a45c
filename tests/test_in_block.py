"""Products and attention in a block, relative to the same work alone, and what predictions take from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity.prediction import fits
from fp8parity.prediction.basis import Basis
from fp8parity.prediction.in_block import TimedBlock, in_block
from fp8parity.prediction.step import ATTENTION, CASTS, GEMMS, REST, step_time
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.device import Part, PartTime
from fp8parity.training.device_profile import GPU as SIZES
from fp8parity.workload import shapes
from fp8parity.workload.shapes import ModelShape, Workload

CURRENT, BF16, BASE = RECIPES["te-current"], RECIPES["bf16"], shapes.get("base")
WIDTHS = [w.shape.hidden for w in SIZES.blocks]


def block(recipe: str, width: int, head: int, parts: tuple[float, float, float]) -> TimedBlock:
    work = Workload(ModelShape("block", width, 3 * width, width // head, 1, head, 1), 1, 64)
    return TimedBlock(recipe, work, dict(zip((Part.BLOCK_PRODUCTS, Part.BLOCK_ATTENTION, Part.BLOCK_REST), parts, strict=True)))


def test_the_products_of_a_recipe_are_those_of_its_blocks_between_their_widths():
    found = in_block(
        [(block("a", 512, 64, (2, 1, 1)), 1, 1), (block("a", 2048, 64, (8, 1, 1)), 1, 1), (block("b", 512, 64, (1, 1, 1)), 2, 1)]
    )
    assert [found.of_products("a", w) for w in (256, 512, 1024, 2048, 4096)] == pytest.approx([2, 2, 4, 8, 8])
    assert [found.of_products(r, 512) for r in ("b", "c")] == pytest.approx([0.5, 1])


def test_attention_is_slower_the_larger_the_share_of_the_products_is():
    """For each head size there is a line through all recipes: here exp(share) with heads of 64 features, and 2 with those of 128."""
    quarter, half = block("a", 512, 64, (1, 1, 2)), block("b", 640, 64, (2, 1, 1))
    found = in_block([(quarter, 1, 1 / math.exp(0.25)), (half, 1, 1 / math.exp(0.5)), (block("a", 1024, 128, (1, 2, 1)), 1, 1)])
    assert [found.of_attention(share, 64) for share in (0.0, 0.25, 0.75)] == pytest.approx([1, math.exp(0.25), math.exp(0.75)])
    assert [found.of_attention(share, head) for share, head in ((0.1, 128), (0.9, 256))] == pytest.approx([2, 2])
    assert found.of_attention(0.5, 80) == pytest.approx(math.exp(0.5))


def test_without_blocks_all_is_as_alone():
    found = in_block([])
    assert found.of_products("bf16", 1024) == found.of_attention(0.6, 64) == 1
    assert gpu.made().in_block == found, "the made-up GPU has the rest of blocks alone"


def with_blocks(slower: Mapping[str, float], attention: float) -> Basis:
    """Blocks whose products take ``slower`` times as long as alone, by recipe, and their attention ``attention`` times."""
    found = gpu.made()
    times: list[PartTime] = []
    for w in SIZES.blocks:
        for recipe, ratio in slower.items():
            alone = sum(
                g.count * found.gemm(recipe, p, g) for g in w.shape.layer(w.tokens, joined=False) for p in ("fprop", "dgrad", "wgrad")
            )
            times.append(gpu.block(Part.BLOCK_PRODUCTS, recipe, w, ratio * alone))
            times.append(gpu.block(Part.BLOCK_ATTENTION, recipe, w, attention * found.attention(w, "torch")))
    return replace(found, profile=found.profile.model_copy(update={"times": [*found.profile.times, *times]}))


@pytest.mark.parametrize(("recipe", "products"), [(BF16, 1.5), (CURRENT, 1.0)])
def test_a_step_has_the_products_and_the_attention_of_its_blocks(recipe, products):
    """te-current has no blocks of its own."""
    before, after = (step_time(b, BASE, recipe, Execution.NATIVE).parts for b in (gpu.made(), with_blocks({"bf16": 1.5}, 1.25)))
    assert after[GEMMS] == pytest.approx(products * before[GEMMS])
    assert after[ATTENTION] == pytest.approx(1.25 * before[ATTENTION])
    assert {p: after[p] for p in (CASTS, REST)} == pytest.approx({p: before[p] for p in (CASTS, REST)})


def test_blocks_of_a_recipe_without_gemms_are_left_out():
    made = with_blocks({"bf16": 2.0}, 1.0)
    other = gpu.block(Part.BLOCK_PRODUCTS, "ao-rowwise", SIZES.blocks[0], 1.0)
    more = replace(made, profile=made.profile.model_copy(update={"times": [*made.profile.times, other]}))
    assert list(more.in_block.products) == ["bf16"]
    assert [w for w, _ in more.in_block.products["bf16"]] == WIDTHS


def test_a_line_through_one_place_has_no_slope():
    assert fits.line([(0.5, 1.0), (0.5, 3.0)]) == fits.Line(0.0, 2.0)
    assert [fits.line([(0, 1), (1, 3), (2, 5)]).at(x) for x in (0, 3)] == pytest.approx([1, 7])
