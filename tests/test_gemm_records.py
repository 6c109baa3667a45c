"""Records of timed GEMMs: what they may hold, their files, and their place in a set."""

from __future__ import annotations

import re
from pathlib import Path

import gemm_records
import pytest
from fp8parity.judging.gemm_sums import total
from fp8parity.judging.references import pooling
from fp8parity.recipes.registry import RECIPES, gemm_cells
from fp8parity.records.cell import Execution
from fp8parity.records.gemms import GemmMode, GemmTimes
from fp8parity.records.sets import merge
from fp8parity.workload import shapes
from gemm_records import changed, judged, made


def test_lists_of_other_shapes_are_other_records():
    """A list has no batch. Its name holds a hash of its shapes, in any order, so that two lists do not contradict each other."""
    one = gemm_records.made(micro_batch=0, sequence=0, layers=0)
    turned = one.model_copy(update={"gemms": one.gemms[::-1]})
    fewer = one.model_copy(update={"gemms": one.gemms[:6]})
    assert one.content == turned.content != fewer.content
    assert re.fullmatch("gemms-[0-9a-f]{6}", one.content)
    assert len(merge([(Path("a"), one), (Path("b"), fewer)])) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"recipe_seconds": [1.0]}, "up wgrad kernel: bf16_seconds holds 9 values, and recipe_seconds 1"),
        ({"bf16_seconds": [], "recipe_seconds": []}, "bf16_seconds holds 0 values"),
        ({"failed": "CUBLAS_STATUS_NOT_SUPPORTED"}, "up wgrad kernel failed, and holds times"),
        ({"recipe_seconds": [0.0] * 9}, "greater than 0"),
        ({"gemm": "fprop"}, "gemms holds up fprop kernel more than once"),
        ({"error": -1.0}, "greater than or equal to 0"),
    ],
)
def test_a_record_refuses_what_is_no_measurement(changes, words):
    record = gemm_records.changed(gemm_records.made(), "up wgrad kernel", **changes)
    with pytest.raises(ValueError, match=words):
        GemmTimes.model_validate_json(record.model_dump_json())


def test_each_gemm_counts_as_often_as_it_is_in_a_layer():
    """The first GEMM of three takes 1 s in BF16 and 0.5 s in the recipe, the others 4 s and 4 s."""
    one = [g for g in made().gemms if g.mode == GemmMode.KERNEL and g.linear == "up"]
    times = ((1.0, 0.5, 3), (4.0, 4.0, 1), (4.0, 4.0, 1))
    counted = [
        g.model_copy(update={"bf16_seconds": [b] * 9, "recipe_seconds": [r] * 9, "count": n})
        for g, (b, r, n) in zip(one, times, strict=True)
    ]
    found = total(made(gemms=counted), GemmMode.KERNEL)
    assert (found.bf16_milliseconds, found.milliseconds, found.ratio) == (11e3, 9.5e3, 11 / 9.5)
    flops = sum(g.flops * g.count for g in counted)
    assert (found.bf16_tflops, found.tflops) == (flops / 11 / 1e12, flops / 9.5 / 1e12)


FUSED = ["triton_red_fused_0", "triton_per_fused_1"]
UPGRADED = made().provenance.model_copy(update={"packages": {**made().provenance.packages, "torch": "3.0"}})


@pytest.mark.parametrize(
    ("kernels", "words"),
    [
        ([*FUSED, "triton_poi_fused_2"], "3 kernels next to the GEMM, golden 2: an extra cast"),
        (FUSED[:1], "1 kernel next to the GEMM, golden 2: a cast is missing, or fused with another"),
    ],
)
def test_same_compiler_fuses_casts_alike(kernels, words):
    fused = changed(made(casts=[]), "up fprop training", kernels=[*FUSED, "nvjet_sm90_qqtst"])
    other = changed(fused, "up fprop training", kernels=[*kernels, "nvjet_sm90_qqtst"])
    verdict = judged(other, pooling.updated(None, [fused]))
    assert (verdict.status, verdict.headline) == ("fail", f"up fprop training: {words}")


def test_casts_of_other_packages_count_if_they_run_alone():
    """The casts of another linear say nothing about those of this one."""
    others = [c for c in made().casts if c.linear != "up"]
    kernels = ["cast"] * 3 + ["nvjet_sm90_qqtst"]
    assert (
        judged(changed(made(casts=others, provenance=UPGRADED), "up fprop training", kernels=kernels)).status == "pass"
    )
    assert judged(changed(made(provenance=UPGRADED), "up fprop training", kernels=kernels)).status == "fail"


def test_each_native_recipe_has_a_gemm_cell_and_no_variant_has():
    found = gemm_cells(shapes.known())
    assert {c.recipe for c in found} == {
        r.name for r in RECIPES.values() if r.native and not r.base and r.linear.quantized
    }
    assert {c.model for c in found} == set(shapes.known())
    assert {c.execution for c in found} == {Execution.NATIVE}
