"""Kernels under the profiler, at the marks, and which of them are GEMMs of which formats."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fp8parity.checks import dispatch
from fp8parity.records.gemms import is_gemm, is_quantized, select_casts
from fp8parity.training import kernels
from sessions import cell


def event(name: str, device: str = "CUDA", stream: int = 0, start: float = 0.0) -> SimpleNamespace:
    kind = getattr(torch.autograd.DeviceType, device)
    return SimpleNamespace(
        name=name, device_type=kind, device_resource_id=stream, time_range=SimpleNamespace(start=start)
    )


class Trace:
    """A profile with these events."""

    def __init__(self, *found: SimpleNamespace) -> None:
        self.found = found

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def events(self) -> list[SimpleNamespace]:
        return list(self.found)


def test_kernels_are_those_of_the_gpu_in_their_order(monkeypatch):
    late = event("nvjet_a", start=3.0), event("aten::mm", "CPU"), event("Memset (Device)"), event("cast", start=2.0)
    monkeypatch.setattr(kernels, "profile", lambda activities: Trace(*late))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert kernels.names(lambda: None) == ["cast", "nvjet_a"]


BF16 = ["nvjet_sm90_tst_128x256", "ampere_bf16_s1688gemm", "cutlass3x_device_kernel", "a_s16816_xmma_b", "NVJET_tst"]
FP8 = [
    "nvjet_sm90_qqtst", "nvjet_rqtst", "nvjet_sm100_mxq", "nvjet_sm100_ofp4", "nvjet_sm100_nvt", "gemm_e4m3", "gemm_e5m2", "gemm_e2m1",
    "gemm_f8f6f4", "gemm_Float8", "gemm_float4", "fp8_gemm", "fp4_gemm",
]  # fmt: skip
OTHER = [
    "flash_gemm", "fmha_gemm", "sdpa_gemm", "attn_gemm", "gemm_splitK_x_reduce", "cudnn_gemm", "row_col_rht_gemm", "cast", "device_kernel",
    "xmma",
]  # fmt: skip


def test_gemms_and_their_formats_are_known_by_name():
    found = {name: (is_gemm(name), is_quantized(name)) for name in (*BF16, *FP8)}
    assert found == {name: (True, name in FP8) for name in found}
    assert select_casts([BF16[0], *OTHER, FP8[0]]) == OTHER


FP8_GEMM = "nvjet_sm90_qqtst_128x256_128x6_2x1_v_bz_coopA_TNT"
MIXED = "nvjet_sm90_qrtst_128x256_128x6_2x1_v_bz_TNT"
BF16_GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN"


LINEAR = {"fprop": [FP8_GEMM], "dgrad": [MIXED], "wgrad": [MIXED]}
FORWARD, BACKWARD = [FP8_GEMM] * 7 + [BF16_GEMM], [MIXED] * 14 + [BF16_GEMM] * 2
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
@pytest.mark.parametrize("instead", [[BF16_GEMM], []])
def test_gemm_fallen_back_or_missing_is_named(session, monkeypatch, gemm, instead):
    found, places = verdict(session, monkeypatch, linear=LINEAR | {gemm: instead})
    assert found.status == "fail"
    assert places == {f"{gemm} kernels off @ linear"}


@pytest.mark.parametrize(
    ("forward", "backward", "places"),
    [
        ([BF16_GEMM, *FORWARD[1:]], BACKWARD, {"quantized kernels off @ forward", "BF16 kernels off @ forward"}),
        (FORWARD, [BF16_GEMM, *BACKWARD[1:]], {"quantized kernels off @ backward", "BF16 kernels off @ backward"}),
        (FORWARD[1:], BACKWARD, {"quantized kernels off @ forward"}),
        (
            [FP8_GEMM] * 8,
            BACKWARD,
            {"quantized kernels off @ forward", "BF16 kernels off @ forward"},
        ),  # the head was quantized too
    ],
)
def test_layer_fallen_back_is_seen(session, monkeypatch, forward, backward, places):
    found, seen = verdict(session, monkeypatch, forward=forward, backward=backward)
    assert (found.status, seen) == ("fail", places)


def test_wgrad_in_bf16_by_the_recipe_passes(session, monkeypatch):
    linear = {
        "fprop": [FP8_GEMM],
        "dgrad": [FP8_GEMM, BF16_GEMM],
        "wgrad": [FP8_GEMM, BF16_GEMM],
    }  # torchao computes both gradients at once
    backward = [FP8_GEMM] * 7 + [BF16_GEMM] * 9
    found, _ = verdict(session, monkeypatch, linear, backward=backward, recipe="ao-rowwise-gw-hp")
    assert found.status == "pass", found.message()
    found, places = verdict(
        session, monkeypatch, linear | {"wgrad": [FP8_GEMM, FP8_GEMM]}, backward=backward, recipe="ao-rowwise-gw-hp"
    )
    assert (found.status, places) == ("fail", {"wgrad kernels off @ linear"})


def test_kernels_of_several_streams_repeat(monkeypatch):
    """Grouped GEMMs of TE run on several streams. Streams of a pool take turns, and one may compete under stress."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    found = []
    for late, pool in ((0, 13), (2, 5)):
        starts = {"cast": (7, 0), "gemm of 1": (7, 1 + late), "gemm of 2": (pool, 2), "sum": (7, 9)}
        competing = {f"elementwise_kernel<frac_kernel_cuda> {i}": (21, i) for i in range(late)}
        ran = [event(name, stream=s, start=at) for name, (s, at) in (starts | competing).items()]
        monkeypatch.setattr(kernels, "profile", lambda activities, ran=ran: Trace(*ran))
        found.append(dispatch.launched(lambda: None))
    assert found == [["cast", "gemm of 1", "sum", "gemm of 2"]] * 2
