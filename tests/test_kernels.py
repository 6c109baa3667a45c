"""Kernels under the profiler: what they do by their names, at the marks, and the split of a step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from fp8parity.records.times import Category
from fp8parity.timing import kernels
from fp8parity.timing.kernels import Launch, busy, by_mark, category_of, split_of

SEEN = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NTT": Category.GEMM,
    "nvjet_sm90_qqtst_128x128_128x6_1x2_h_bz_coopA_algo2_Ablk128_Bvec128_TNN": Category.GEMM,
    "cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64_1x4x1_cga1x1x1_kernel0_0": Category.ATTENTION,
    "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*, void const*, void*": Category.ATTENTION,
    "void cudnn::fusion::fmha_reduce_head<true>(void const*, void*, unsigned int": Category.ATTENTION,
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t": Category.ATTENTION,
    "void transformer_engine::fused_rope_forward_kernel<__nv_bfloat16>(__nv_bfloat16 const*": Category.ATTENTION,
    "cast_transpose_optimized_kernel(__nv_bfloat16 const*, float const*, __nv_fp8_e4m3*": Category.QUANTIZE,
    "void transformer_engine::(anonymous namespace)::amax_kernel<16, true, __nv_bfloat16>(__nv_bfloat16": Category.QUANTIZE,
    "void transformer_engine::(anonymous namespace)::block_scaled_1d_cast_transpose_kernel<true, float": Category.QUANTIZE,
    "transpose_optimized_kernel(__nv_fp8_e4m3 const*, float const*, __nv_fp8_e4m3*, unsigned long": Category.QUANTIZE,
    "transformer_engine::(anonymous namespace)::compute_scale_from_amax_kernel(float const*": Category.QUANTIZE,
    "void transformer_engine::unary_kernel<16, true, float, Empty, &transformer_engine::dispatch::fp8::detail::identity": Category.QUANTIZE,
    "row_col_rht_gemm_device": Category.QUANTIZE,
    "triton_red_fused__to_copy_abs_amax_0": Category.QUANTIZE,
    "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<transformer_engine::normalization::Kernel_traits": Category.NORM,
    "triton_per_fused__fused_rms_norm__fused_rms_norm_backward__to_copy__unsafe_view_add_view_6": Category.NORM,
    "void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernelTemplate<float, float, 32u": Category.NORM,
    "void transformer_engine::gated_act_kernel<16, true, float, Empty, &silu, __nv_bfloat16, __nv_fp8_e4m3": Category.ELEMENTWISE,
    "triton_poi_fused__unsafe_view_mul_silu_silu_backward_view_0": Category.ELEMENTWISE,
    "triton_poi_fused_clone_transpose_3": Category.ELEMENTWISE,
    "void at::native::vectorized_elementwise_kernel<8, at::native::CUDAFunctor_add<c10::BFloat16>": Category.ELEMENTWISE,
    "rotate_heads": Category.ELEMENTWISE,
    "Memset (Device)": Category.ELEMENTWISE,
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>": Category.OPTIMIZER,
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, true, float>": Category.OPTIMIZER,
    "triton_poi_fused__to_copy_add_copy__div_mul_sqrt_sub_0": Category.OPTIMIZER,
    "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>": Category.LOSS,
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 8, true, false>(float*": Category.LOSS,
    "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<policy_hub<long>": Category.OTHER,
}
"""Kernels that ran on an H100 with torch 2.11, Transformer Engine 2.20.2 and torchao 0.18, shortened, and what they do."""


def test_a_kernel_is_known_by_its_name():
    assert {name: category_of(name) for name in SEEN} == SEEN


def test_overlapping_kernels_count_once_as_busy():
    ran = [Launch("a", 0.0, 2.0), Launch("b", 1.0, 3.0), Launch("c", 5.0, 6.0), Launch("d", 5.2, 5.4)]
    assert busy(ran) == pytest.approx(4.0)


def test_the_split_of_two_steps_is_as_by_hand():
    """Each step has 3 ms of GEMMs and 1 ms of casts, and takes 5 ms without the profiler, so it waits for 1 ms."""
    ran = []
    for step in (0.0, 1.0):
        ran += [Launch("nvjet_a", step, step + 0.001), Launch("nvjet_b", step + 0.001, step + 0.003)]
        ran += [Launch("cast_transpose_x", step + 0.1, step + 0.101)]
    found = split_of(ran, 2, 0.005)
    assert found.categories == pytest.approx({Category.GEMM: 0.003, Category.QUANTIZE: 0.001, Category.IDLE: 0.001})
    assert [found.share(c) for c in (Category.GEMM, Category.QUANTIZE, Category.IDLE)] == pytest.approx([0.6, 0.2, 0.2])
    assert (found.kernels[0].name, found.kernels[0].launches, found.launches) == ("nvjet_b", 1.0, 3)


def test_a_step_that_does_not_wait_is_not_idle():
    assert split_of([Launch("nvjet_a", 0.0, 0.004)], 1, 0.003).categories[Category.IDLE] == 0.0


def test_kernels_are_split_at_the_marks():
    names = ["early", "spin_kernel(long)", "cast", "nvjet_qq", "Memset (Device)", "x::spin_kernel", "nvjet_t"]
    assert by_mark(names) == [["cast", "nvjet_qq"], ["nvjet_t"]]


def test_launches_are_kernels_of_the_gpu_without_ranges_of_the_host(monkeypatch):
    def event(name: str, device: torch.autograd.DeviceType) -> SimpleNamespace:
        return SimpleNamespace(name=name, device_type=device, time_range=SimpleNamespace(start=1e6, end=3e6))

    class Profile:
        def __init__(self, activities):
            kernel, host = torch.autograd.DeviceType.CUDA, torch.autograd.DeviceType.CPU
            ran = [("nvjet_a", kernel), ("aten::mm", host), ("Optimizer.step#AdamW.step", kernel)]
            self.found = [event(*one) for one in ran]

        def __enter__(self):
            return self

        def __exit__(self, *failure):
            pass

        def events(self):
            return self.found

    monkeypatch.setattr(kernels, "profile", Profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    assert kernels.launches(lambda: None) == [Launch("nvjet_a", 1.0, 3.0)]
    with pytest.raises(RuntimeError, match="saw 0 marks and not 1"):
        kernels.names([lambda: None])
