"""torchao's roofline: equal to torchao's own functions for its GPU, and what is added for ours."""

from __future__ import annotations

import pytest
import torch
from fp8parity.prediction import sizes as roofline
from fp8parity.prediction.sizes import Roof
from fp8parity.recipes.registry import RECIPES
from fp8parity.workload.shapes import GemmShape

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


def test_the_gpus_of_this_project_have_a_roof():
    h100, h200 = (roofline.roof_of(f"NVIDIA {name}") for name in ("H100 80GB HBM3", "H200"))
    assert h100 and h200 and (h100.bandwidth, h200.bandwidth) == (3.35e12, 4.8e12)
    assert roofline.roof_of("NVIDIA L4") is None


def test_large_linears_gain_and_small_ones_lose():
    """Large linears come near two; small ones are slower in FP8, because a cast takes at least as long as a launch."""
    large = [GemmShape("a", 16384, 28672, 8192)]
    assert 1.7 < roofline.speed_up(large, META, "te-delayed") < 2.0
    assert roofline.speed_up([GemmShape("a", 256, 256, 256)], META, "ao-tensorwise") < 0.5


def test_every_fp8_recipe_has_a_formula():
    quantized = {
        r.name
        for r in RECIPES.values()
        if r.linear.quantized and not r.base and r.name.partition("-")[0] in ("te", "ao")
    }
    assert quantized - set(roofline.FORMULAS) == {"te-nvfp4"}
    assert roofline.speed_up([GemmShape("a", 512, 512, 512)], META, "te-nvfp4") is None
