"""Timing of transformer blocks: form, gradients, refusals, and the parts of a block in a stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.records.cell import Execution, Mode
from fp8parity.timing import blocks, steps
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
        assert out.shape == (2, 32, 64) and all(p.grad is not None for p in block.layers[0].parameters())
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
