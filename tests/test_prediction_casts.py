"""What training adds to a GEMM alone: casts along memory and across it, and the scaling of results, each with a cost of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity.prediction.basis import PRODUCTS, Basis
from fp8parity.prediction.fits import TimedBlock, in_block
from fp8parity.prediction.sizes import Additions, side_seconds
from fp8parity.prediction.step import CASTS, step_time
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes, Product, TimedGemm
from fp8parity.records.times import Part
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape, ModelShape, Workload

ROWWISE, CAST, ALONG, ACROSS, RESULT = "ao-rowwise", 8e-6, 2e-12, 3e-12, 5e-12
"""A recipe, the seconds of a cast, and those of an element of each kind."""
READ = {"fprop": ["x", "w"], "dgrad": ["dy", "w"], "wgrad": ["dy", "x"]}
LINEAR = GemmShape("o", 3, 5, 7)


def law(g: TimedGemm | GemmShape, product: Product) -> tuple[float, float]:
    """(the seconds of the casts, those of the result) of a GEMM. Only fprop has fast accumulation, and no scaling after it."""
    m, n, k = g.m, g.n, g.k
    along, across, result = {
        "fprop": (m * k + n * k, 0, 0),
        "dgrad": (m * n, n * k, m * k),
        "wgrad": (0, m * n + m * k, n * k),
    }[product]
    return 2 * CAST + ALONG * along + ACROSS * across, RESULT * result


def rowwise(record: GemmTimes) -> GemmTimes:
    """Return the same GEMMs with torchao's rowwise recipe, which scales the results of split accumulation."""
    made, alone = [], 0.0
    for g in record.gemms:
        split = Accumulation.FAST if g.gemm == "fprop" else Accumulation.SPLIT
        if g.mode == GemmMode.KERNEL:
            alone = g.recipe_seconds[0]
            made.append(g.model_copy(update={"accumulation": split}))
            continue
        casts, result = law(g, g.gemm)
        seconds = alone + casts + result
        made.append(
            g.model_copy(update={"accumulation": split, "casts": READ[g.gemm], "recipe_seconds": [seconds] * 3})
        )
    return record.model_copy(update={"gemms": made, "cell": record.cell.model_copy(update={"recipe": ROWWISE})})


def basis_of() -> Basis:
    """Its steps are timed at base, of which no GEMM was."""
    return replace(gpu.made(), gemms=tuple(rowwise(gpu.gemm_times(shapes.get(n))) for n in ("small", "llama3-8b")))


@pytest.mark.parametrize(
    ("product", "operands", "casts", "results"),
    [
        ("fprop", ("x", "w"), {"casts": 2, "elements": 3 * 7 + 5 * 7, "across": 0}, 3 * 5),
        ("dgrad", ("dy", "w"), {"casts": 2, "elements": 3 * 5, "across": 5 * 7}, 3 * 7),
        ("wgrad", ("dy", "x"), {"casts": 2, "elements": 0, "across": 3 * 5 + 3 * 7}, 5 * 7),
        ("dgrad", ("dy",), {"casts": 1, "elements": 3 * 5, "across": 0}, 3 * 7),
        ("wgrad", (), {"casts": 0, "elements": 0, "across": 0}, 5 * 7),
    ],
)
def test_additions_have_the_sizes_of_operands_and_result(product, operands, casts, results):
    for groups in (1, 4):
        g = replace(LINEAR, groups=groups)
        of_groups = {name: size * (1 if name == "casts" else groups) for name, size in casts.items()}
        assert Additions(product, operands, split=True).casts(g) == of_groups
        assert Additions(product, operands, split=True).results(g) == {"results": results * groups}
        assert Additions(product, operands, split=False).results(g) == {"results": 0}


@pytest.mark.parametrize("product", PRODUCTS)
def test_each_kind_of_cost_is_found(product):
    found = basis_of()
    for g in (GemmShape("o", 16_384, 1024, 2048), GemmShape("down", 4096, 8192, 512)):
        casts, results = law(g, product)
        assert found.added(ROWWISE, product, g) == pytest.approx(casts, rel=1e-4)
        assert found.added(ROWWISE, product, g, results=True) == pytest.approx(results, rel=1e-4, abs=1e-12)


def test_a_compiler_joins_casts_and_scales_each_result():
    """q, k and v read one x, which is cast once. Each has its own dx, which is scaled."""
    found, work, recipe = basis_of(), shapes.get("base"), RECIPES[ROWWISE]
    assert recipe.native is not None and recipe.native.compile
    seconds = step_time(found, work, recipe, Execution.NATIVE).parts[CASTS] / work.shape.layers
    casts = sum(g.count * law(g, p)[0] for g in work.shape.layer(work.tokens, joined=True) for p in PRODUCTS)
    results = {
        j: sum(g.count * law(g, p)[1] for g in work.shape.layer(work.tokens, joined=j) for p in PRODUCTS)
        for j in (False, True)
    }
    assert results[False] > 1.4 * results[True]
    assert seconds == pytest.approx(casts + results[False], rel=1e-3)


BEFORE, AFTER, PRODUCT = (
    "triton_poi_fused_new_ones_0",
    "triton_poi_fused__to_copy_mul_reciprocal_1",
    "nvjet_sm90_qqtst_128x128_TNT",
)


@pytest.mark.parametrize(
    ("kernels", "launches", "elements"),
    [
        ([PRODUCT], 0, 0),
        ([BEFORE, BEFORE, PRODUCT], 2, 0),
        ([BEFORE, BEFORE, PRODUCT, AFTER], 3, 3 * 7),
        (["void at::native::vectorized_elementwise_kernel<4, reciprocal>", PRODUCT], 1, 0),
        ([], 0, 0),
    ],
)
def test_side_kernels_cost_launches_and_a_pass_over_the_result(kernels, launches, elements):
    [g, *_] = [g for g in gpu.gemm_times(shapes.get("small")).gemms if g.gemm == "dgrad"]
    g = g.model_copy(update={"m": 3, "n": 5, "k": 7, "kernels": kernels})
    assert side_seconds(g, launch=2e-6, rate=1e9) == pytest.approx(launches * 2e-6 + 4 * elements / 1e9)


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
