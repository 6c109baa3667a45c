"""The parts of a block in a stack: which kernels are whose, of which replays, and what is no block of a step."""

from __future__ import annotations

from dataclasses import replace

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
GEMM, ATTENTION = (
    "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma",
)
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
    found = stacks.grouped(ran(2 + 2 * ROUNDS, slower=3.0), 2 + 2 * ROUNDS, 2)
    assert found == {
        Part.BLOCK_PRODUCTS: [5.0] * (ROUNDS - 1) + [10.0],
        Part.BLOCK_ATTENTION: [3.0] * (ROUNDS - 1) + [6.0],
        Part.BLOCK_REST: [3.0] * (ROUNDS - 1) + [6.0],
    }


@pytest.mark.parametrize("kept", [slice(1, None), slice(len(KERNELS), None), slice(0, 0), slice(ROUNDS, None)])
def test_lost_kernels_are_an_error(kept):
    """One kernel, as many as a replay has, all, and one of each replay are lost: the last ones are all of one name."""
    few = ran(ROUNDS)[kept]
    if kept == slice(ROUNDS, None):
        assert len({launch.name for launch in few}) == len(KERNELS) - 1
        few = few[:-1]
    with pytest.raises(
        ValueError, match=rf"saw {len(few)} kernels in {ROUNDS} equal replays: its events are not complete"
    ):
        stacks.grouped(few, ROUNDS, 1)


@pytest.mark.parametrize(
    ("name", "part", "longest"), [(GEMM, "block-products", "new"), (ATTENTION, "block-attention", GEMM[:20])]
)
def test_a_kernel_that_no_name_tells_of_is_an_error(name, part, longest):
    """A new version of a library may name its kernels otherwise. Six minutes of a profile would end with a time of 0."""
    unknown = [replace(launch, name="new") if launch.name == name else launch for launch in ran(ROUNDS)]
    with pytest.raises(
        ValueError, match=rf"no kernel of a block is known as {part} \(training/kernels.py\); the longest is '{longest}"
    ):
        stacks.grouped(unknown, ROUNDS, 1)


def test_replays_fill_the_seconds_before_and_during_the_measurement():
    for once in (1e-3, 0.01):
        settled, ramp, group = stacks.replays(once)
        assert stacks.SETTLED <= settled * once < stacks.SETTLED + once
        assert stacks.RAMP <= ramp * once < stacks.RAMP + once
        assert stacks.TIMED <= ROUNDS * group * once < stacks.TIMED + ROUNDS * once
    assert stacks.SETTLED > 0.5 and stacks.RAMP >= 0.1, "the clock has settled"
    assert stacks.replays(0.07)[2] == stacks.LEAST > 1, "a group of a wide block is a mean"


@pytest.mark.slow
def test_on_a_cpu_the_whole_block_is_its_rest(monkeypatch):
    """A stack of several blocks takes as many times as long as one."""
    monkeypatch.setattr(stacks, "seconds", lambda work, device: [work() is not None and 6.0] * ROUNDS)
    assert stacks.LAYERS > 1
    assert stacks.timed(SMALL, registry.get("bf16"), CPU) == {Part.BLOCK_REST: [6.0 / stacks.LAYERS] * ROUNDS}


def test_a_stack_runs_its_blocks_one_after_the_other():
    stack = make_block(SMALL, registry.get("bf16"), Execution.NATIVE, CPU, layers=3)
    seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []
    for number, layer in enumerate(stack.layers):
        layer.register_forward_hook(lambda module, args, out, number=number: seen.append((number, args[0], out)))
    gradient = stack.work()()
    assert [number for number, *_ in seen] == [0, 1, 2]
    assert seen[0][1] is stack.x and all(torch.equal(seen[i][2], seen[i + 1][1]) for i in (0, 1))
    assert gradient is stack.x.grad and bool(gradient.isfinite().all())


def test_gradients_of_a_stack_do_not_add_up():
    stack = make_block(SMALL, registry.get("bf16"), Execution.NATIVE, CPU, layers=2)
    once, found = stack.work(), []
    for _ in range(2):
        once()
        found.append([p.grad.clone() for layer in stack.layers for p in layer.parameters() if p.grad is not None])
    assert len(found[0]) == 2 * 9
    assert all(bool(a.any()) and torch.equal(a, b) for a, b in zip(*found, strict=True))
