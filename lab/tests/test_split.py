"""The split of a step: the filter that it proposes, and how it is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reports
from fp8parity.judging import speed
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Throughput, TimeSplit
from fp8parity.report.blocks import Table
from fp8parity_lab.cli.split import table
from fp8parity_lab.splitting import Category, page
from fp8parity_lab.splitting.filters import filtered, propose, speeds
from fp8parity_lab.splitting.kernels import Launch, busy, category_of, split_of
from fp8parity_lab.splitting.linears import linears
from splits import KV, SAME, Q
from splits import split as made
from test_timed_blocks import CPU, CURRENT, SMALL
from timings import SHAPE
from timings import made as timed


def test_slow_linears_are_proposed_with_their_gain():
    """k and v lose 0.1 ms each. Without that, a step of 10.2 ms takes 10.0 ms."""
    found = propose(made(Q, KV, SAME))
    assert found is not None and found.filters == ("k_proj", "v_proj")
    assert found.gain == pytest.approx(10.2 / 10.0)
    assert [s.names for s in speeds(made(Q, KV, SAME)) if s.slower] == ["attention.k_proj, attention.v_proj"]


def test_filter_names_no_other_linear():
    """An expert's down_proj is slow, and that of the shared expert is not."""
    slow, sound = ("mlp.experts.down_proj",), ("mlp.shared_expert.down_proj",)
    found = propose(made(KV.model_copy(update={"fqns": slow}), SAME.model_copy(update={"fqns": sound})))
    assert found is not None and found.filters == ("experts.down_proj",)


def test_without_a_slow_linear_nothing_is_proposed():
    assert propose(made(Q, SAME)) is None and propose(made()) is None
    assert "no filter is proposed" in table(made(Q, SAME))


def test_a_linear_has_its_ratio_and_what_all_its_copies_save():
    found = speeds(made(Q, SAME, KV, layers=3))
    assert [s.names.split(".")[-1] for s in found] == ["v_proj", "down_proj", "o_proj"], "the slowest first"
    assert [(s.ratio, s.low, s.high) for s in found] == [pytest.approx((r, r, r)) for r in (5 / 6, 1.0, 4 / 3)]
    assert [s.saved for s in found] == pytest.approx([-0.6e-3, 0.0, 3e-3])


def test_the_table_says_shares_linears_and_filter():
    text = table(made(Q, KV))
    assert " ".join(text.split()).startswith(
        "te-current-base-native, compiled, 4096 tokens a step BF16 share te-current share difference gemm 10.000 ms 80.0% "
    )
    assert "attention.k_proj, attention.v_proj: 0.83x" in text and text.count("slower") == 1
    assert "proposed filter: k_proj, v_proj stay in BF16; predicted gain +2.0%" in text
    assert max(map(len, text.splitlines())) <= 80


WITHOUT = "without k_proj v_proj"


def block_of(ratio: float, variant: str, **changes: Any) -> Throughput:
    return timed(ratio, variant=variant, **{"block": SHAPE} | changes)


def a_split(variant: str = "", **changes: Any) -> TimeSplit:
    return made(Q, KV, SAME).model_copy(update={"block": SHAPE, "variant": variant} | changes)


PLAIN, FILTERED = block_of(1.2, "eager"), block_of(1.25, f"eager {WITHOUT}")


def test_the_gain_of_a_filter_is_the_ratio_of_both_speed_ups():
    [found] = filtered(a_split("eager"), [PLAIN, FILTERED])
    one, two = speed.measured(PLAIN), speed.measured(FILTERED)
    low, middle, high = found.gain
    down = math.hypot(math.log(two.ratio / two.low), math.log(one.high / one.ratio))
    up = math.hypot(math.log(two.high / two.ratio), math.log(one.ratio / one.low))
    assert middle == pytest.approx(1.25 / 1.2) and low < middle < high
    assert (math.log(middle / low), math.log(high / middle)) == pytest.approx((down, up))
    assert found.variant == f"eager {WITHOUT}"
    whole = a_split("", block=None, layers=4)  # a split step takes any block of its model
    assert [f.variant for f in filtered(whole, [PLAIN, FILTERED])] == [FILTERED.variant]


@pytest.mark.parametrize(
    ("of", "records"),
    [
        (a_split(""), [PLAIN, FILTERED]),  # another setting
        (a_split("eager"), [FILTERED]),
        (a_split("eager"), [PLAIN, block_of(1.1, "eager 1x32")]),  # no filter
        (a_split("eager"), [PLAIN, block_of(1.1, f"1x32 {WITHOUT}")]),
        (a_split("eager"), [block_of(1.2, "eager", block=SHAPE.model_copy(update={"sequence": 8})), FILTERED]),
        (a_split("eager", block=SHAPE.model_copy(update={"sequence": 8})), [PLAIN, FILTERED]),
        (a_split("eager", cell=PLAIN.cell.model_copy(update={"recipe": "te-block"})), [PLAIN, FILTERED]),
        (a_split("eager"), [PLAIN, FILTERED.model_copy(update={"recipe_memory": 0})]),  # unusable
        (a_split("", block=None), [block_of(1.2, "", block=None), block_of(1.25, WITHOUT, block=None)]),  # a step
    ],
)
def test_blocks_with_other_differences_do_not_count(of, records):
    assert filtered(of, records) == []


def test_a_page_shows_the_slowest_linear_first():
    [table] = [b for b in page.document([a_split("eager")]).blocks if isinstance(b, Table) and "Linears" in b.title]
    rows = reports.texts(table)
    assert [row[0].split(",")[0] for row in rows] == ["attention.k_proj", "mlp.down_proj", "attention.q_proj"]
    assert rows[0][1:] == ["500.0", "600.0", "0.833 [0.833, 0.833] slower"] and rows[2][3] == "1.333 [1.333, 1.333]"


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
    assert [page.share(found, c) for c in (Category.GEMM, Category.QUANTIZE, Category.IDLE)] == pytest.approx(
        [0.6, 0.2, 0.2]
    )
    assert (found.kernels[0].name, found.kernels[0].launches, found.launches) == ("nvjet_b", 1.0, 3)


def test_linears_of_equal_dimensions_are_timed_once(eager):
    found = linears(SMALL, CURRENT, Execution.EMULATED, CPU)
    assert {(t.fqns, t.k, t.n) for t in found} == {
        (("attention.q_proj", "attention.o_proj"), 64, 64), (("attention.k_proj", "attention.v_proj"), 64, 32),
        (("mlp.gate_proj", "mlp.up_proj"), 64, 128), (("mlp.down_proj",), 128, 64),
    }  # fmt: skip
    assert all(len(t.bf16_seconds) >= 6 for t in found)
    assert linears(SMALL, CURRENT, Execution.FUSED, CPU) == []
