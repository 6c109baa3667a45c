"""Products and attention in a block, relative to the same work alone, and what predictions take from it."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity.prediction import fits
from fp8parity.prediction.basis import PRODUCTS, Basis
from fp8parity.prediction.fits import TimedBlock, in_block
from fp8parity.prediction.step import ATTENTION, CASTS, ENDS, GEMMS, MODULES, OPTIMIZER, REST, casts_alone, step_time
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.times import Part, PartTime
from fp8parity.timing.profile import GPU as SIZES
from fp8parity.workload import shapes
from fp8parity.workload.shapes import ModelShape, Workload

CURRENT, BF16, BASE = RECIPES["te-current"], RECIPES["bf16"], shapes.get("base")


def block(recipe: str, width: int, head: int, parts: tuple[float, float, float]) -> TimedBlock:
    work = Workload(ModelShape("block", width, 3 * width, width // head, 1, head, 1), 1, 64)
    return TimedBlock(
        recipe, work, dict(zip((Part.BLOCK_PRODUCTS, Part.BLOCK_ATTENTION, Part.BLOCK_REST), parts, strict=True))
    )


def test_products_are_those_of_blocks_between_widths():
    found = in_block(
        [
            (block("a", 512, 64, (2, 1, 1)), 1, 1),
            (block("a", 2048, 64, (8, 1, 1)), 1, 1),
            (block("b", 512, 64, (1, 1, 1)), 2, 1),
        ]
    )
    assert [found.of_products("a", w) for w in (256, 512, 1024, 2048, 4096)] == pytest.approx([2, 2, 4, 8, 8])
    assert [found.of_products(r, 512) for r in ("b", "c")] == pytest.approx([0.5, 1])


def test_attention_is_slower_with_a_larger_share_of_products():
    """For each head size there is a line through all recipes: here exp(share) with heads of 64 features, and 2 with those of 128."""
    quarter, half = block("a", 512, 64, (1, 1, 2)), block("b", 640, 64, (2, 1, 1))
    found = in_block(
        [(quarter, 1, 1 / math.exp(0.25)), (half, 1, 1 / math.exp(0.5)), (block("a", 1024, 128, (1, 2, 1)), 1, 1)]
    )
    assert [found.of_attention(share, 64) for share in (0.0, 0.25, 0.75)] == pytest.approx(
        [1, math.exp(0.25), math.exp(0.75)]
    )
    assert [found.of_attention(share, head) for share, head in ((0.1, 128), (0.9, 256))] == pytest.approx([2, 2])
    # 90 is nearer to 64 by the difference, and to 128 by the ratio: 90 / 64 is 1.41, and 128 / 90 is 1.42. 92 is the other way round.
    assert [found.of_attention(0.5, head) for head in (90, 92)] == pytest.approx([math.exp(0.5), 2])


SLOWER = {640: 1.1, 896: 1.2, 1536: 1.5, 5120: 2.0}
"""Products of BF16 in blocks of these widths. Those of te-current take half of that."""
ATTENTION_LINE = (0.1, 0.4)
"""The logarithm of attention's ratio, without products and for each unit of their share."""


def with_blocks(*recipes: str) -> Basis:
    """A profile with whole blocks of these recipes. Their rest is such that fusion changes nothing."""
    found = gpu.made()
    times: list[PartTime] = []
    for w in SIZES.blocks:
        for name in recipes:
            linears = w.shape.layer(w.tokens, joined=False)
            products = sum(g.count * found.gemm(name, product, g) for g in linears for product in PRODUCTS)
            products *= SLOWER[w.shape.hidden] * (0.5 if name != "bf16" else 1.0)
            rest = found.rest(w) + casts_alone(found, w, RECIPES[name], dict.fromkeys(MODULES, 1.0), joined=False)
            ratio = 1.0
            for _ in range(50):  # the share of the products depends on the ratio
                ratio = math.exp(
                    ATTENTION_LINE[0]
                    + ATTENTION_LINE[1] * products / (products + rest + ratio * found.attention(w, "torch"))
                )
            times.append(gpu.block(Part.BLOCK_PRODUCTS, name, w, products))
            times.append(gpu.block(Part.BLOCK_ATTENTION, name, w, ratio * found.attention(w, "torch")))
            times.append(gpu.block(Part.BLOCK_REST, name, w, rest))
    kept = [t for t in found.profile.times if t.part != Part.BLOCK_REST]
    return replace(found, profile=found.profile.model_copy(update={"times": [*kept, *times]}))


@pytest.mark.parametrize(
    ("recipe", "own", "factor"), [(BF16, (), 1.0), (CURRENT, (), None), (CURRENT, ("te-current",), 0.5)]
)
def test_a_layer_has_products_and_attention_of_its_blocks(recipe, own, factor):
    """Without blocks of te-current its products are as alone. Head, loss and optimizer are no part of a block."""
    made = with_blocks("bf16", *own)
    before, after = (step_time(b, BASE, recipe, Execution.NATIVE, block=True).parts for b in (gpu.made(), made))
    slower = 1.0 if factor is None else factor * fits.between(list(SLOWER.items()), BASE.shape.hidden)
    assert after[GEMMS] == pytest.approx(slower * before[GEMMS], rel=1e-3)
    assert {p: after[p] for p in (CASTS, REST)} == pytest.approx({p: before[p] for p in (CASTS, REST)}, rel=1e-3)
    share = after[GEMMS] / (after[GEMMS] + before[CASTS] + before[ATTENTION] + before[REST])
    assert after[ATTENTION] / before[ATTENTION] == pytest.approx(
        math.exp(ATTENTION_LINE[0] + ATTENTION_LINE[1] * share), rel=1e-3
    )
    step, alone = (step_time(b, BASE, recipe, Execution.NATIVE).parts for b in (made, gpu.made()))
    head = gpu.made().ends(BASE)[0]
    assert step[GEMMS] == pytest.approx(BASE.shape.layers * after[GEMMS] + head, rel=1e-3)
    assert {p: step[p] for p in (ENDS, OPTIMIZER)} == pytest.approx({p: alone[p] for p in (ENDS, OPTIMIZER)})
