"""Kernel names -> FP8, BF16 or no GEMM; and the GEMM that quietly ran in BF16 is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fp8parity.checks import dispatch
from sessions import cell

FP8 = "nvjet_sm90_qqtst_128x256_128x6_2x1_v_bz_coopA_TNT"
MIXED = "nvjet_sm90_qrtst_128x256_128x6_2x1_v_bz_TNT"
BF16 = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_TNN"

KERNELS = {
    FP8: "fp8",
    MIXED: "fp8",
    "nvjet_sm90_rqtst_128x128_128x6_1x2_h_bz_TNT": "fp8",
    "nvjet_qqtst_128x256_128x6_2x1_2cta_v_bz_TNT": "fp8",  # CUDA 12 leaves the arch out
    "nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT": "fp8",
    "nvjet_sm100_qqtst_128x256_128x6_2x1_2cta_v_bz_bias_TNT": "fp8",
    "nvjet_sm100_ootst_128x256_256x6_2x1_2cta_v_bz_Avec16UE4M3_Bvec16UE4M3_TNT": "fp8",
    "sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128_cgasize1x2x1_stage4_gmmastage2_warpgroupsize1x1x1_tensor64x128x32": "fp8",
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cutlass::float_e4m3_t, cutlass::float_e5m2_t>>": "fp8",
    "cutlass3x_sm100_tensorop_s256x128x32gemm_f8f6f4_f32_bf16": "fp8",
    BF16: "bf16",
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN": "bf16",
    "nvjet_sm100_tst_32x64_64x16_4x1_v_bz_splitK_TNN": "bf16",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas": "bf16",
    "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_tn_align8": "bf16",
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "other",
    "void transformer_engine::detail::cast_transpose_fused_kernel_notaligned<false, __nv_bfloat16, __nv_fp8_e4m3>": "other",
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<__nv_fp8_e4m3>": "other",
    "void flash_fwd_kernel<cutlass::gemm::bf16>": "other",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_fp8": "other",
    "void at::native::elementwise_kernel<128, 2>": "other",
}
"""What each is. The nvjet_qqtst, nvjet_sm100_qqtst, nvjet_sm100_tst and e4m3 xmma names were printed by profilers; the others follow the
pattern of such names, and were not seen as they stand here."""


def kind(name: str) -> str:
    return "other" if not dispatch.is_gemm(name) else "fp8" if dispatch.is_quantized(name) else "bf16"


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_is(name):
    assert kind(name) == KERNELS[name]


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
def test_a_gemm_that_fell_back_or_vanished_is_named(session, monkeypatch, gemm, instead):
    found, places = verdict(session, monkeypatch, linear=LINEAR | {gemm: instead})
    assert found.status == "fail"
    assert places == {f"{gemm} kernels off @ linear"}


@pytest.mark.parametrize("names", [[FP8, FP8], [FP8, BF16]])
def test_a_second_kernel_in_fprop_is_no_gradient(session, monkeypatch, names):
    assert verdict(session, monkeypatch, linear=LINEAR | {"fprop": names})[1] == {"fprop kernels off @ linear"}


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
def test_one_layer_of_a_model_that_fell_back_is_seen(session, monkeypatch, forward, backward, places):
    found, seen = verdict(session, monkeypatch, forward=forward, backward=backward)
    assert (found.status, seen) == ("fail", places)


def test_a_recipe_whose_wgrad_is_meant_to_be_bf16(session, monkeypatch):
    linear = {"fprop": [FP8], "dgrad": [FP8, BF16], "wgrad": [FP8, BF16]}  # torchao computes both gradients at once
    backward = [FP8] * 7 + [BF16] * 9
    found, _ = verdict(session, monkeypatch, linear, backward=backward, recipe="ao-rowwise-gw-hp")
    assert found.status == "pass", found.message()
    found, places = verdict(
        session, monkeypatch, linear | {"wgrad": [FP8, FP8]}, backward=backward, recipe="ao-rowwise-gw-hp"
    )
    assert (found.status, places) == ("fail", {"wgrad kernels off @ linear"})
