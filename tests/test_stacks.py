"""The parts of a block in a stack: which kernels are whose, of which replays, and what is no block of a step."""

from __future__ import annotations

import pytest
import torch
from fp8parity.recipes import registry
from fp8parity.records.cell import Execution
from fp8parity.records.device import Part
from fp8parity.training import stacks
from fp8parity.training.blocks import make_block
from fp8parity.training.profiled import Launch
from fp8parity.training.replays import ROUNDS
from fp8parity.workload.shapes import ModelShape, Workload

CPU, SMALL = torch.device("cpu"), Workload(ModelShape("block", 64, 128, 2, 1, 32, 1), 2, 32)
KERNELS = {
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT": 5.0,
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma": 3.0,
    "triton_per_fused_rms_norm_0": 2.0,
    "void at::native::elementwise_kernel<4>": 1.0,
}
"""The seconds of the kernels of a replay."""


def ran(replays: int, slower: float = 1.0) -> list[Launch]:
    """Replays, the last of which took ``slower`` times as long, in the order of the profiler: by name."""
    made, now = [], 0.0
    for number in range(replays):
        for name, seconds in KERNELS.items():
            end = now + seconds * (slower if number == replays - 1 else 1.0)
            made.append(Launch(name, now, end))
            now = end
    return sorted(made, key=lambda launch: launch.name)


def test_each_kernel_counts_for_its_part_in_the_last_replays():
    found = stacks.grouped(ran(2 + 2 * ROUNDS, slower=3.0), 2 + 2 * ROUNDS, 2)
    assert found == {
        Part.BLOCK_PRODUCTS: [5.0] * (ROUNDS - 1) + [10.0],
        Part.BLOCK_ATTENTION: [3.0] * (ROUNDS - 1) + [6.0],
        Part.BLOCK_REST: [3.0] * (ROUNDS - 1) + [6.0],
    }


@pytest.mark.parametrize("lost", [1, len(KERNELS) * ROUNDS])
def test_lost_kernels_are_an_error(lost):
    with pytest.raises(ValueError, match=rf"saw {len(KERNELS) * ROUNDS - lost} kernels in {ROUNDS} equal replays: its events are not"):
        stacks.grouped(ran(ROUNDS)[lost:], ROUNDS, 1)


@pytest.mark.slow
def test_on_a_cpu_the_whole_block_is_its_rest():
    found = stacks.timed(SMALL, registry.get("bf16"), CPU)
    assert list(found) == [Part.BLOCK_REST] and len(found[Part.BLOCK_REST]) == ROUNDS and min(found[Part.BLOCK_REST]) > 0


def test_a_stack_runs_its_blocks_one_after_the_other():
    stack = make_block(SMALL, registry.get("bf16"), Execution.NATIVE, CPU, layers=3)
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for number, layer in enumerate(stack.layers):
        layer.register_forward_hook(lambda module, args, out, number=number: seen.append((number, args[0], out)))
    gradient = stack.work()()
    assert [number for number, *_ in seen] == [0, 1, 2]
    assert seen[0][1] is stack.x and all(torch.equal(seen[i][2], seen[i + 1][1]) for i in (0, 1))
    assert gradient is stack.x.grad and bool(gradient.isfinite().all())
    assert all(p.grad is not None for layer in stack.layers for p in layer.parameters())
