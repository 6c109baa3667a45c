"""Where the time of a step goes: kinds of kernels by name, the arithmetic of a split, and the filter that it proposes. No GPU."""

from __future__ import annotations

import csv
import io
import json

import pytest
from fp8parity.cli.blocks import table
from fp8parity.judging.module_filter import LinearSpeed, propose, speeds
from fp8parity.records.cell import Mode
from fp8parity.records.schema import TimeSplit
from fp8parity.records.timings import Category, LinearTime, Split
from fp8parity.report import split as shown
from fp8parity.training.kernels import category_of
from fp8parity.training.profiled import Launch, busy, is_range, split_of
from timings import CELL, HERE

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
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>": Category.OPTIMISER,
    "void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, true, float>": Category.OPTIMISER,
    "triton_poi_fused__to_copy_add_copy__div_mul_sqrt_sub_0": Category.OPTIMISER,
    "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>": Category.LOSS,
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 8, true, false>(float*": Category.LOSS,
    "void at_cuda_detail::cub::detail::radix_sort::DeviceRadixSortOnesweepKernel<policy_hub<long>": Category.OTHER,
}
"""Kernels that ran on an H100 with torch 2.11, Transformer Engine 2.20.2 and torchao 0.18, shortened, and what they do."""


@pytest.mark.parametrize("name", SEEN)
def test_a_kernel_is_known_by_its_name(name):
    assert category_of(name) is SEEN[name]


def test_ranges_of_the_host_are_no_kernels():
    assert is_range("Optimizer.step#AdamW.step") and not is_range("nvjet_sm90_tst")


def test_overlapping_kernels_count_once_as_busy():
    ran = [Launch("a", 0.0, 2.0), Launch("b", 1.0, 3.0), Launch("c", 5.0, 6.0), Launch("d", 5.2, 5.4)]
    assert busy(ran) == pytest.approx(4.0)


def test_the_split_of_two_steps_by_hand():
    """Each step has 3 ms of GEMMs and 1 ms of casts, and takes 5 ms without the profiler, so it waits for 1 ms."""
    ran = []
    for step in (0.0, 1.0):
        ran += [Launch("nvjet_a", step, step + 0.001), Launch("nvjet_b", step + 0.001, step + 0.003)]
        ran += [Launch("cast_transpose_x", step + 0.1, step + 0.101)]
    found = split_of(ran, 2, 0.005)
    assert found.categories == pytest.approx({Category.GEMM: 0.003, Category.QUANTIZE: 0.001, Category.IDLE: 0.001})
    assert [found.share(c) for c in (Category.GEMM, Category.QUANTIZE, Category.IDLE)] == pytest.approx([0.6, 0.2, 0.2])
    assert (found.kernels[0].name, found.kernels[0].launches, found.launches) == ("nvjet_b", 1.0, 3)


def test_a_step_that_never_waits_is_not_idle():
    assert split_of([Launch("nvjet_a", 0.0, 0.004)], 1, 0.003).categories[Category.IDLE] == 0.0


def linear(fqns: tuple[str, ...], n: int, bf16: float, own: float) -> LinearTime:
    noise = [1 + 0.001 * i for i in range(-3, 4)]
    return LinearTime(
        fqns=fqns, k=4096, n=n, bf16_seconds=[bf16 * x for x in noise], recipe_seconds=[own * x for x in noise]
    )


Q = linear(("attention.q_proj", "attention.o_proj"), 4096, 2.0e-3, 1.5e-3)
KV = linear(("attention.k_proj", "attention.v_proj"), 1024, 0.5e-3, 0.6e-3)
SAME = linear(("mlp.down_proj",), 4096, 1.0e-3, 1.0e-3)


def made(*linears: LinearTime, layers: int = 1) -> TimeSplit:
    sides = [
        Split(seconds=s, categories={Category.GEMM: 0.8 * s, Category.QUANTIZE: q * s, Category.IDLE: 0.2 * s - q * s})
        for s, q in ((0.0125, 0.0), (0.0102, 0.1))
    ]
    return TimeSplit(
        cell=CELL, mode=Mode.COMPILED, tokens=4096, bf16=sides[0], recipe=sides[1], linears=list(linears), layers=layers,
        provenance=HERE, session="s",
    )  # fmt: skip


def test_the_slow_linears_are_proposed_with_the_gain_that_they_cost():
    """k and v lose 0.1 ms each. Without that, a step of 10.2 ms takes 10.0 ms."""
    found = propose(made(Q, KV, SAME))
    assert found is not None and found.filters == ("k_proj", "v_proj")
    assert found.gain == pytest.approx(10.2 / 10.0)
    assert [s.names for s in speeds(made(Q, KV, SAME)) if s.slower] == ["attention.k_proj, attention.v_proj"]


def test_every_layer_of_a_step_gains():
    found = propose(made(KV, layers=4))
    assert found is not None and found.gain == pytest.approx(10.2 / 9.4)


def test_without_a_slow_linear_nothing_is_proposed():
    assert propose(made(Q, SAME)) is None and propose(made()) is None
    assert "no filter is proposed" in table(made(Q, SAME))


def test_a_linear_has_its_ratio_and_what_all_its_copies_save():
    found = speeds(made(Q, SAME, KV, layers=3))
    assert [s.names.split(".")[-1] for s in found] == ["v_proj", "down_proj", "o_proj"], "the slowest first"
    assert [(s.ratio, s.low, s.high) for s in found] == [pytest.approx((r, r, r)) for r in (5 / 6, 1.0, 4 / 3)]
    assert [s.saved for s in found] == pytest.approx([-0.6e-3, 0.0, 3e-3])


@pytest.mark.parametrize(("high", "slower"), [(0.999, True), (1.0, False)])
def test_a_linear_is_slower_if_its_whole_interval_is_below_one(high, slower):
    assert LinearSpeed(KV, 0.9, 0.8, high, 5e-4, 6e-4, -1e-4).slower is slower


def test_a_filter_that_leaves_no_time_is_none():
    half = LinearTime(fqns=("a", "b"), k=1, n=1, bf16_seconds=[0.5] * 7, recipe_seconds=[1.0] * 7)
    whole = made(half)
    for seconds, gain in ((1.0, None), (2.0, 2.0)):
        found = propose(whole.model_copy(update={"recipe": whole.recipe.model_copy(update={"seconds": seconds})}))
        assert (found and found.gain) == gain
        assert found is None or found.filters == ("a", "b")


def test_the_table_says_shares_linears_and_filter():
    text = table(made(Q, KV))
    assert " ".join(text.split()).startswith(
        "te-current-base-native, compiled, 4096 tokens a step BF16 share te-current share difference gemm 10.000 ms 80.0% "
    )
    assert "attention.k_proj, attention.v_proj: 0.83x" in text and text.count("slower") == 1
    assert "proposed filter: k_proj, v_proj stay in BF16; predicted gain +2.0%" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_csv_has_every_bit():
    block = made(KV).model_copy(update={"variant": "eager"})
    rows = list(csv.DictReader(io.StringIO(shown.as_csv([made(Q), block]))))
    assert [r["category"] for r in rows] == ["gemm", "quantize", "idle"] * 2
    assert [r["timed"] for r in rows[2:4]] == ["training-step-split", "training-step-split-eager"]
    assert (rows[0]["device"], rows[0]["cell"], rows[0]["mode"]) == (
        "NVIDIA Made Up",
        "te-current-base-native",
        "compiled",
    )
    assert float(rows[0]["bf16_seconds"]) == 0.8 * 0.0125 and float(rows[1]["recipe_share"]) == pytest.approx(0.1)


def test_the_json_holds_linears_and_filter():
    found, other = json.loads(shown.as_json([made(Q, KV), made(Q)]))
    assert found["filter"]["filters"] == ["k_proj", "v_proj"] and found["filter"]["gain"] == pytest.approx(1.02)
    assert [(x["linears"][0], x["slower"]) for x in found["linears"]] == [
        ("attention.k_proj", True),
        ("attention.q_proj", False),
    ]
    assert found["categories"][0]["category"] == "gemm" and other["filter"] is None
