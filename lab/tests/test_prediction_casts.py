"""What training adds to a GEMM alone: casts along memory and across it, and the scaling of results, each with a cost of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
import torch
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes, Product, TimedGemm
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape, ModelShape, Workload
from fp8parity_lab.prediction import Part
from fp8parity_lab.prediction import sizes as roofline
from fp8parity_lab.prediction.basis import PRODUCTS, Basis
from fp8parity_lab.prediction.calibration import SHRUNK, calibrate, corrections, held_out
from fp8parity_lab.prediction.fits import TimedBlock, in_block
from fp8parity_lab.prediction.residuals import Group, Measured, Residual, Size, measured, residuals
from fp8parity_lab.prediction.sizes import Additions, Roof
from fp8parity_lab.prediction.step import CASTS, step_time

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
    """Its steps are timed at base, and no GEMM of base was."""
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


A, B = "NVIDIA A", "NVIDIA B"
NATIVE = "te-current native"
GROUP = Group(gpu.NAME, False, NATIVE)
MODELS = ("small", "base", "1b", "llama3-8b")


def cell(device: str, block: bool, model: str, error: float, recipe: str = "te-current") -> Residual:
    found = Measured(device, shapes.get(model), recipe, Execution.NATIVE, Execution.NATIVE, block, 1.0, 1.0)
    return Residual(found, 1.0, 0.0, error)


def cells(sd: float, bias: float = 0.0, seed: int = 0) -> list[Residual]:
    """Residuals of the made-up GPU, whose steps are off from the law by ``bias`` and noise."""
    noise = gpu.noise(len(MODELS), sd, seed)
    steps = [gpu.timed(shapes.get(name), off=bias + e) for name, e in zip(MODELS, noise, strict=True)]
    return residuals(gpu.made((*MODELS, "llama3-70b")), steps)


def test_a_bias_of_the_recipe_is_corrected():
    """The fewer models show it, the less is corrected."""
    raw, rows = cells(0.0, bias=0.08), held_out(cells(0.0, bias=0.08))
    assert len(rows) == 4
    assert all(abs(row.error) < abs(math.exp(-r.error) - 1) for row, r in zip(rows, raw, strict=True))
    assert 0.02 < calibrate(raw).corrections.of(GROUP) < 0.08
    assert calibrate(raw[:2]).corrections.overall < calibrate(raw).corrections.overall


def test_the_interval_covers_its_confidence():
    hits = [r.covered for seed in range(40) for r in held_out(cells(0.03, 0.02, seed))]
    assert 0.85 < sum(hits) / len(hits) < 0.99


def test_a_models_own_cell_does_not_help_it():
    steps = [gpu.timed(shapes.get(name), off=0.5 if name == "1b" else 0.0) for name in MODELS]
    [row] = [r for r in held_out(residuals(gpu.made(), steps)) if r.cell.work.shape.name == "1b"]
    assert row.error == pytest.approx(math.exp(-0.5) - 1, abs=0.03) and not row.covered


def shrunk(mean: float, models: int, whole: float) -> float:
    return whole + (mean - whole) * models / (models + SHRUNK)


def test_each_group_is_shrunk_to_its_parent():
    """Two cells of one model count as one."""
    found = corrections(
        [
            cell(A, False, "1b", 0.1),
            cell(A, False, "base", 0.3),
            cell(A, False, "1b", 0.6, "te-block"),
            cell(B, True, "base", -0.2),
        ]
    )
    overall = shrunk(0.2, 2, 0.0)
    steps, blocks = shrunk(1.0 / 3, 2, overall), shrunk(-0.2, 1, overall)
    assert found.overall == pytest.approx(overall)
    assert found.of(Group(A, False, NATIVE)) == pytest.approx(shrunk(0.2, 2, steps))
    assert found.of(Group(A, False, "te-block native")) == pytest.approx(shrunk(0.6, 1, steps))
    assert found.of(Group(A, False, "te-delayed fused")) == found.of(Group(A, False)) == pytest.approx(steps)
    assert found.of(Group(B, True, NATIVE)) == pytest.approx(shrunk(-0.2, 1, blocks))
    assert found.of(Group(B, False, NATIVE)) == found.overall


def test_extrapolated_cells_correct_nothing_and_widen_each_other():
    """Two are 0.3 off in logarithms, and no other cell is off."""
    off = {"small": 0.3, "base": 0.3}
    names = ("small", "base", "llama3-8b", "llama3-70b")
    steps = [gpu.timed(shapes.get(name), off=off.get(name, 0.0)) for name in names]
    found = residuals(gpu.made(("llama3-8b", "llama3-70b")), steps)
    assert [r.model for r in found if r.extrapolated] == ["small", "base"]
    assert replace(calibrate(found), beyond=None) == calibrate([r for r in found if not r.extrapolated])
    other = calibrate(found, "base")
    assert other.beyond is not None and other.sd < 0.05
    assert (other.beyond.n, other.beyond.models, other.beyond.sizes) == (1, 1, (Size.FEATURES,))
    assert other.beyond.sd == pytest.approx(0.3, rel=0.15)
    narrow, wide = (other.interval(1.2, GROUP, beyond) for beyond in (False, True))
    # Student's t at 90%: 2.920 with the 2 models that are near, 6.314 with the one that is not.
    assert math.log(narrow[2] / narrow[1]) == pytest.approx(2.920 * other.sd, rel=1e-3)
    assert math.log(wide[2] / wide[1]) == pytest.approx(6.314 * other.beyond.sd, rel=1e-3)
    assert wide[1] == narrow[1] and math.log(wide[1] / wide[0]) == pytest.approx(math.log(wide[2] / wide[1]))
    assert all(r.covered for r in held_out(found))


# Which records test a prediction

STEP = gpu.timed(shapes.get("1b"))


@pytest.mark.parametrize(
    "changes",
    [
        {"variant": "another head"},
        {"tokens": 17},
        {"attention": "torch's choice"},
        {"optimizer": "torch's AdamW"},
        {"cell": STEP.cell.model_copy(update={"model": "theirs"})},
        *({"mode": mode} for mode in Mode if not mode.graphed),
    ],
)
def test_a_step_of_another_kind_is_not_compared(changes):
    assert measured(STEP.model_copy(update=changes)) is None


META = Roof(989e12, 1979e12, 2.4e12, 0.78, 0.92, "torchao's H100")
SHAPES = [(16384, 2048, 6144), (8192, 4096, 14336), (512, 768, 256), (4096, 8192, 28672), (64, 64, 64)]


@pytest.mark.parametrize(("m", "k", "n"), SHAPES)
@pytest.mark.parametrize("formula", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "mxfp8", None])
def test_the_roofline_equals_torchaos(m, k, n, formula):
    theirs = pytest.importorskip("torchao.testing.training.roofline_utils")
    mx = "mxfp8_cublas" if formula == "mxfp8" else None
    float8 = None if mx else formula
    dtype = torch.float8_e4m3fn if formula else torch.bfloat16
    wanted = float(theirs.get_gemm_time_sympy(m, k, n, dtype, float8, mx, "NVIDIA H100"))
    if formula:
        wanted += float(theirs.get_float8_mem_sympy(m, k, n, float8, mx, False, "NVIDIA H100"))
    assert roofline.linear_seconds(GemmShape("a", m, n, k), META, formula) == pytest.approx(wanted, rel=1e-9)


def test_every_fp8_recipe_has_a_formula():
    quantized = {
        r.name
        for r in RECIPES.values()
        if r.linear.quantized and not r.base and r.name.partition("-")[0] in ("te", "ao")
    }
    assert quantized - set(roofline.FORMULAS) == {"te-nvfp4"}
    assert roofline.speed_up([GemmShape("a", 512, 512, 512)], META, "te-nvfp4") is None
