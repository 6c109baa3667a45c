"""Predictions far from what was measured on the GPU, in features, tokens or sequence."""

from __future__ import annotations

from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity.prediction import residuals as extrapolation
from fp8parity.prediction.residuals import Size, excesses
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape, Workload

ONE, SMALL = shapes.get("1b"), shapes.get("small")


def share(found, work: Workload) -> float:
    """Return the share of the GEMM work in linears with fewer features than all that were timed."""
    layer = work.shape.layer(work.tokens, joined=False)
    return extrapolation.share(extrapolation.far(layer, found.timed("te-current"))[Size.FEATURES], layer)


def beyond(found, work: Workload, recipe: str = "te-current") -> list[Size]:
    return [e.size for e in excesses(found, work, recipe)]


@pytest.mark.parametrize(
    ("name", "small"),
    [("small", 6656 / 8960), ("base", 8704 / 11776), ("1b", 0.0), ("llama3-8b", 0.0), ("llama3-405b", 0.0)],
)
def test_gemms_far_below_the_timed_ones_are_counted(name, small):
    """The narrowest GEMM of Llama 3 8B is that of k and v, 4096 to 1024. It is near the last linear of an MLP."""
    assert share(gpu.made(("llama3-8b",)), shapes.get(name)) == pytest.approx(small)


def test_only_gemms_of_the_recipe_count_and_all_for_bf16():
    timed, large = gpu.gemm_times(SMALL), gpu.made(("llama3-8b",))
    other = timed.model_copy(update={"cell": timed.cell.model_copy(update={"recipe": "te-block"})})
    found = replace(large, gemms=(*large.gemms, other))
    recipes = ("te-current", "te-block", "bf16")
    assert [beyond(found, SMALL, recipe) for recipe in recipes] == [[Size.FEATURES], [], []]
    near = gpu.made(("small", "base", "llama3-8b"))
    assert share(near.alone("small"), SMALL) == share(near, SMALL) == 0


@pytest.mark.parametrize(
    ("rows", "length", "found"),
    [
        (1, 16, [Size.TOKENS, Size.SEQUENCE]),
        (15, 272, [Size.TOKENS]),
        (16, 256, []),
        (17, 240, [Size.TOKENS, Size.SEQUENCE]),
        (18, 240, [Size.SEQUENCE]),
        (64, 512, []),
        (65, 512, [Size.TOKENS]),
        (1, 65_536, [Size.TOKENS]),
        (1, 131_072, [Size.TOKENS, Size.SEQUENCE]),
    ],
)
def test_a_batch_far_from_the_timed_ones_is_extrapolated(rows, length, found):
    """The GEMMs of 1b are timed with 16,384 tokens, and attention over 512 to 32,768."""
    assert beyond(gpu.made(("1b",)), Workload(ONE.shape, rows, length)) == found


@pytest.mark.parametrize(
    ("small", "few", "near", "named"),
    [
        (6, 1, 3, {"features": 0.6}),
        (1, 6, 3, {"tokens": 0.6}),
        (3, 3, 4, {"features": 0.3, "tokens": 0.3}),
        (2, 3, 5, {}),
    ],
)
def test_sizes_that_make_up_most_of_the_work_are_named(small, few, near, named):
    """Alone, or else together."""
    layer = [GemmShape(name, n, 16, 16) for name, n in (("small", small), ("few", few), ("near", near))]
    assert extrapolation.beyond(layer, {Size.FEATURES: layer[:1], Size.TOKENS: layer[1:2]}) == pytest.approx(named)
