"""Sums of GEMMs over a layer: how often each GEMM counts, and why there is no sum."""

from __future__ import annotations

import pytest
from fp8parity.judging.gemm_sums import sums, total
from fp8parity.records.gemms import GemmMode
from gemm_records import made

LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}
CACHED = ("training, cached weights", "all")


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


@pytest.mark.parametrize(
    ("record", "cached"),
    [(made(), True), (made(casts=[]), False), (made(tool="te-benchmark"), False), (made(casts=[], tool="t"), False)],
)
def test_weights_are_cached_where_casts_were_timed_alone(record, cached):
    assert (CACHED in [(s.mode, s.gemm) for s in sums(record)]) is cached
