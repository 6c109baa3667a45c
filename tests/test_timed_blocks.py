"""Timing of transformer blocks: form, gradients, refusals, and the parts of a block in a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.times import Part
from fp8parity.timing import blocks, kernels, steps
from fp8parity.timing.graphs import ROUNDS
from fp8parity.timing.kernels import Launch
from fp8parity.timing.linears import linears
from fp8parity.workload import shapes
from fp8parity.workload.shapes import ModelShape, Workload

CPU = torch.device("cpu")
SMALL = Workload(ModelShape("nano", hidden=64, intermediate=128, heads=2, kv_heads=1, head_dim=32, layers=2), 2, 32)
BF16, CURRENT = recipes.get("bf16"), recipes.get("te-current")


@pytest.mark.slow
def test_a_block_is_timed_and_its_shape_is_recorded(session, eager, monkeypatch):
    monkeypatch.setattr(steps, "TURN_SECONDS", 0.01)
    session.settings = replace(session.settings, mode=Mode.EAGER)
    record = session.time_block(CURRENT, Execution.EMULATED, SMALL, rest=0.001)
    assert record.block and record.block.model_dump() == {
        "dim": 64, "hidden": 128, "heads": 2, "kv_heads": 1, "sequence": 32, "micro_batch": 2,
    }  # fmt: skip
    assert (record.tokens, record.variant) == (64, "eager 2x32 rest-0.001s")
    assert (record.bf16_execution, record.mode) == ("native", "eager")
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert record.flops_per_token == 6 * matrices + 6 * 64 * 32
    assert speed.measured(record).ratio < 1  # the emulation is slower than BF16


def test_both_sides_compute_the_whole_block(eager):
    """All parameters and the input have gradients; the recipe's differ by its quantization."""
    grads = {}
    for recipe, execution in ((BF16, Execution.NATIVE), (CURRENT, Execution.EMULATED)):
        block = blocks.make_block(SMALL, recipe, execution, CPU)
        out = blocks.step_of(block, Mode.EAGER)(0)
        assert out.shape == (2, 32, 64) and all(p.grad is not None for p in block.module.parameters())
        grads[recipe.name] = out.float()
    gap = (grads["te-current"] - grads["bf16"]).norm() / grads["bf16"].norm()
    assert 1e-3 < gap < 0.3


def test_a_stack_runs_its_blocks_in_order_and_gradients_do_not_add_up():
    stack = blocks.make_block(SMALL, BF16, Execution.NATIVE, CPU, layers=3)
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for number, layer in enumerate(stack.layers):
        layer.register_forward_hook(lambda module, args, out, number=number: seen.append((number, args[0], out)))
    once, found = stack.work(), []
    for _ in range(2):
        assert once() is stack.x.grad
        leaves = [stack.x, *(p for layer in stack.layers for p in layer.parameters())]
        found.append([leaf.grad.clone() for leaf in leaves if leaf.grad is not None])
    assert [number for number, *_ in seen] == [0, 1, 2] * 2
    assert seen[0][1] is stack.x and all(torch.equal(seen[i][2], seen[i + 1][1]) for i in (0, 1))
    assert len(found[0]) == 1 + 3 * 9
    assert all(bool(a.any()) and torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_bf16_has_the_form_of_the_recipe():
    """A fused layer is compared with a fused layer without quantization: a slow baseline would flatter FP8."""
    fused, native = Execution.FUSED, Execution.NATIVE
    assert blocks.sides(CURRENT, fused) == ((CURRENT, fused, False), (CURRENT, fused, True))
    assert blocks.sides(CURRENT, native) == ((BF16, native, False), (CURRENT, native, True))
    assert [blocks.default_mode(e) for e in (fused, native)] == [Mode.GRAPHED, Mode.COMPILED_GRAPHED]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (shapes.get("codonfm-5b").shape, "codonfm-5b has an MLP without a gate"),
        (replace(SMALL.shape, experts=8, experts_per_token=2), "nano has 8 experts"),
        (replace(SMALL.shape, head_dim=64), "nano has 2 heads of 64 features, not 64 together"),
    ],
)
def test_a_shape_without_a_block_is_refused(shape, words):
    with pytest.raises(ValueError, match=words):
        blocks.config_of(replace(SMALL, shape=shape))


def test_linears_of_equal_dimensions_are_timed_once(eager):
    found = linears(SMALL, CURRENT, Execution.EMULATED, CPU)
    assert {(t.fqns, t.k, t.n) for t in found} == {
        (("attention.q_proj", "attention.o_proj"), 64, 64), (("attention.k_proj", "attention.v_proj"), 64, 32),
        (("mlp.gate_proj", "mlp.up_proj"), 64, 128), (("mlp.down_proj",), 128, 64),
    }  # fmt: skip
    assert all(len(t.bf16_seconds) >= 6 for t in found)
    assert linears(SMALL, CURRENT, Execution.FUSED, CPU) == []


# Parts of a block in a stack

GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma"
KERNELS = {GEMM: 5.0, ATTENTION: 3.0, "triton_per_fused_rms_norm_0": 2.0, "void at::native::elementwise_kernel<4>": 1.0}
"""The seconds of the kernels of a replay."""


def ran(replays: int, slower: float = 1.0) -> list[Launch]:
    """Replays, the last of which took ``slower`` times as long, in the order of the profiler: by name."""
    made, now = [], 0.0
    for number in range(replays):
        for name, seconds in KERNELS.items():
            end = now + seconds * (slower if number == replays - 1 else 1.0)
            made.append(Launch(name, now, end))
            now = end + 0.5  # a gap, which is in no part
    return sorted(made, key=lambda launch: launch.name)


def test_each_kernel_counts_for_its_part_in_the_last_replays():
    found = kernels.grouped(ran(2 + 2 * ROUNDS, slower=3.0), 2 + 2 * ROUNDS, 2)
    assert found == {
        Part.BLOCK_PRODUCTS: [5.0] * (ROUNDS - 1) + [10.0],
        Part.BLOCK_ATTENTION: [3.0] * (ROUNDS - 1) + [6.0],
        Part.BLOCK_REST: [3.0] * (ROUNDS - 1) + [6.0],
    }


@pytest.mark.parametrize("kept", [slice(1, None), slice(len(KERNELS), None), slice(0, 0), slice(ROUNDS, -1)])
def test_missing_kernels_are_an_error(kept):
    """One kernel, as many as a replay has, all, and one of each replay are missing."""
    few = ran(ROUNDS)[kept]
    with pytest.raises(ValueError, match=rf"saw {len(few)} kernels in {ROUNDS} equal replays"):
        kernels.grouped(few, ROUNDS, 1)


@pytest.mark.parametrize(("name", "part"), [(GEMM, "block-products"), (ATTENTION, "block-attention")])
def test_a_part_without_a_kernel_is_an_error(name, part):
    """A new version of a library may name its kernels otherwise. Six minutes of a profile would end with a time of 0."""
    unknown = [replace(launch, name="new") if launch.name == name else launch for launch in ran(ROUNDS)]
    with pytest.raises(ValueError, match=rf"no kernel of a block is known as {part} \(timing/kernels.py\)"):
        kernels.grouped(unknown, ROUNDS, 1)
