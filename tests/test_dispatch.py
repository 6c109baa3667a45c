"""Kernel names -> FP8, BF16 or no GEMM; and the GEMM that quietly ran in BF16 is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp8parity.checks import dispatch
from sessions import cell

FP8 = "nvjet_sm90_qqtst_128x256_128x6_2x1_v_bz_coopA_TNT"
MIXED = "nvjet_sm90_qrtst_128x256_128x6_2x1_v_bz_TNT"
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN"


LINEAR = {"fprop": [FP8], "dgrad": [MIXED], "wgrad": [MIXED]}
FORWARD, BACKWARD = [FP8] * 7 + [BF16], [MIXED] * 14 + [BF16] * 2
"""A pass of a model of one layer: seven linears, and the head in BF16."""


def verdict(session, monkeypatch, linear=LINEAR, forward=FORWARD, backward=BACKWARD, recipe="te-current"):
    """The check's verdict of a run whose profiler saw these kernels."""
    spec = session.spec(cell(recipe, "emulated", "nano"))
    monkeypatch.setattr(session, "spec", lambda cell: replace(spec, execution="native"))
    monkeypatch.setattr(dispatch, "_of_linear", lambda spec: linear)
    monkeypatch.setattr(dispatch, "_of_model", lambda spec: {"forward": forward, "backward": backward})
    found = session.numerics("dispatch", cell(recipe, "native", "nano"))
    return found, {place for place, _ in found.lines if " @ " in place}


def test_fp8_everywhere_is_green(session, monkeypatch):
    found, _ = verdict(session, monkeypatch)
    assert found.status == "pass", found.message()


@pytest.mark.parametrize("gemm", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("instead", [[BF16], []])
def test_gemm_fallen_back_or_missing_is_named(session, monkeypatch, gemm, instead):
    found, places = verdict(session, monkeypatch, linear=LINEAR | {gemm: instead})
    assert found.status == "fail"
    assert places == {f"{gemm} kernels off @ linear"}


@pytest.mark.parametrize(
    ("forward", "backward", "places"),
    [
        ([BF16, *FORWARD[1:]], BACKWARD, {"quantized kernels off @ forward", "BF16 kernels off @ forward"}),
        (FORWARD, [BF16, *BACKWARD[1:]], {"quantized kernels off @ backward", "BF16 kernels off @ backward"}),
        (FORWARD[1:], BACKWARD, {"quantized kernels off @ forward"}),
        (
            [FP8] * 8,
            BACKWARD,
            {"quantized kernels off @ forward", "BF16 kernels off @ forward"},
        ),  # the head was quantized too
    ],
)
def test_layer_fallen_back_is_seen(session, monkeypatch, forward, backward, places):
    found, seen = verdict(session, monkeypatch, forward=forward, backward=backward)
    assert (found.status, seen) == ("fail", places)


def test_wgrad_in_bf16_by_the_recipe_passes(session, monkeypatch):
    linear = {"fprop": [FP8], "dgrad": [FP8, BF16], "wgrad": [FP8, BF16]}  # torchao computes both gradients at once
    backward = [FP8] * 7 + [BF16] * 9
    found, _ = verdict(session, monkeypatch, linear, backward=backward, recipe="ao-rowwise-gw-hp")
    assert found.status == "pass", found.message()
    found, places = verdict(
        session, monkeypatch, linear | {"wgrad": [FP8, FP8]}, backward=backward, recipe="ao-rowwise-gw-hp"
    )
    assert (found.status, places) == ("fail", {"wgrad kernels off @ linear"})
