"""The errors of predictions: which cells test them, corrections by groups, and intervals that hold the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
import torch
from fp8parity.prediction import sizes as roofline
from fp8parity.prediction.calibration import SHRUNK, calibrate, corrections, held_out
from fp8parity.prediction.residuals import Group, Measured, Residual, Size, measured, residuals
from fp8parity.prediction.sizes import Roof
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape

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
