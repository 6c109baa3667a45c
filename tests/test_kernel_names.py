"""What the names of GPU kernels say, by one name for each word that decides."""

from __future__ import annotations

import pytest
from fp8parity.records.gemms import is_gemm, is_quantized, select_casts

BF16 = [
    "nvjet_sm90_tst_128x256",
    "nvjet_tst_64x8",
    "ampere_bf16_s1688gemm",
    "cutlass3x_device_kernel",
    "a_s16816_xmma_b",
    "NVJET_tst",
]
FP8 = [
    "nvjet_sm90_qqtst", "nvjet_sm100_qrsst", "nvjet_rqtst", "nvjet_sm100_mxq", "nvjet_sm100_ofp4", "nvjet_sm100_nvt", "gemm_e4m3",
    "gemm_e5m2", "gemm_e2m1", "gemm_f8f6f4", "gemm_float8", "gemm_Float4", "fp8_gemm", "fp4_gemm",
]  # fmt: skip
OTHER = [
    "flash_gemm", "fmha_gemm", "sdpa_gemm", "attn_gemm", "gemm_splitK_x_reduce", "cudnn_gemm", "row_col_rht_gemm", "cast", "device_kernel",
    "xmma",
]  # fmt: skip


@pytest.mark.parametrize("name", BF16)
def test_a_gemm_of_bf16_is_not_quantized(name):
    assert (is_gemm(name), is_quantized(name)) == (True, False)


@pytest.mark.parametrize("name", FP8)
def test_a_gemm_of_quantized_operands(name):
    assert (is_gemm(name), is_quantized(name)) == (True, True)


def test_all_other_kernels_are_beside_the_gemms():
    assert not any(is_gemm(name) for name in OTHER)
    assert select_casts([BF16[0], *OTHER, FP8[0]]) == OTHER
