"""The kernels beside a GEMM: an extra cast is seen, also if a compiler fused it, and another compiler may fuse casts otherwise."""

from __future__ import annotations

import pytest
from fp8parity.judging.references import pooling
from gemm_records import changed, judged, made

FUSED = ["triton_red_fused_0", "triton_per_fused_1"]
UPGRADED = made().provenance.model_copy(update={"packages": {**made().provenance.packages, "torch": "3.0"}})


def test_another_compiler_may_fuse_casts_as_it_sees_fit():
    """Then no cast is timed alone. One that costs time is still seen."""
    fused = changed(made(casts=[]), "up fprop training", kernels=[*FUSED, "nvjet_sm90_qqtst"])
    golden = pooling.updated(None, [fused])
    more = changed(
        made(casts=[], provenance=UPGRADED),
        "up fprop training",
        kernels=[*FUSED, "triton_poi_fused_2", "nvjet_sm90_qqtst"],
    )
    assert judged(more, golden).status == "pass"
    slow = changed(more, "up fprop training", recipe_seconds=[s * 1.2 for s in more.gemms[13].recipe_seconds])
    assert judged(slow, golden).headline.startswith("slower: up fprop training")


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
