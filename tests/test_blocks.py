"""One transformer block: what is timed, in which form, and what it refuses. On a CPU, with the emulation; nothing gates these times."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.records.cell import Execution, Mode
from fp8parity.training import benchmark, blocks, split, turns
from fp8parity.workload import models, shapes
from fp8parity.workload.shapes import TIMED_BLOCKS, ModelShape, Workload

CPU = torch.device("cpu")
SMALL = Workload(ModelShape("nano", hidden=64, intermediate=128, heads=2, kv_heads=1, head_dim=32, layers=2), 2, 32)
CURRENT = recipes.get("te-current")


@pytest.mark.slow
def test_a_block_is_timed_beside_bf16_and_its_shape_is_on_record(eager, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.01)
    found = blocks.subject(SMALL, CURRENT, Execution.EMULATED, CPU, Mode.EAGER, "2x32")
    record = benchmark.timed(found, "s", 8)
    assert record.block and record.block.model_dump() == {
        "dim": 64, "hidden": 128, "heads": 2, "kv_heads": 1, "sequence": 32, "micro_batch": 2,
    }  # fmt: skip
    assert (record.tokens, record.variant, record.bf16_execution, record.mode) == (64, "2x32", "native", "eager")
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
    assert record.flops_per_token == 6 * matrices + 6 * 64 * 32
    assert speed.measured(record).ratio < 1  # the emulation is slower than BF16


@pytest.mark.slow
def test_the_gpu_rests_before_each_turn_and_the_record_says_so(session, eager, monkeypatch):
    rests: list[float] = []
    monkeypatch.setattr(turns, "TURN_SECONDS", 0.01)
    monkeypatch.setattr(turns.time, "sleep", rests.append)
    session.settings = replace(session.settings, mode=Mode.EAGER)
    record = session.time_block(CURRENT, Execution.EMULATED, SMALL, rest=0.5)
    assert record.variant == "eager 2x32 rest-0.5s"
    assert rests == [0.5] * 2 * turns.PAIRS == [0.5] * (len(record.bf16_seconds) + len(record.recipe_seconds))


def test_both_sides_compute_forward_and_backward_of_the_whole_block(eager):
    """The gradients of all parameters and of the input are those of the plain block; the recipe's differ by its quantization."""
    grads = {}
    for recipe, execution in ((recipes.get("bf16"), Execution.NATIVE), (CURRENT, Execution.EMULATED)):
        block = blocks.make_block(SMALL, recipe, execution, CPU)
        out = blocks.step_of(block, Mode.EAGER)(0)
        assert out.shape == (2, 32, 64) and all(p.grad is not None for p in block.module.parameters())
        grads[recipe.name] = out.float()
    gap = (grads["te-current"] - grads["bf16"]).norm() / grads["bf16"].norm()
    assert 1e-3 < gap < 0.3


def test_every_step_clears_the_gradients_of_the_last(eager):
    block = blocks.make_block(SMALL, recipes.get("bf16"), Execution.NATIVE, CPU)
    take = blocks.step_of(block, Mode.EAGER)
    first, second = take(0).clone(), take(1)
    assert torch.equal(first, second)


def test_bf16_has_the_form_of_the_recipe():
    """A fused layer beside a fused layer without quantization: a slow baseline would flatter FP8."""
    bf16 = recipes.get("bf16")
    assert blocks.sides(CURRENT, Execution.FUSED) == (
        (CURRENT, Execution.FUSED, False),
        (CURRENT, Execution.FUSED, True),
    )
    assert blocks.sides(CURRENT, Execution.NATIVE) == (
        (bf16, Execution.NATIVE, False),
        (CURRENT, Execution.NATIVE, True),
    )
    assert [blocks.default_mode(e) for e in (Execution.FUSED, Execution.NATIVE)] == [
        Mode.GRAPHED,
        Mode.COMPILED_GRAPHED,
    ]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (shapes.get("codonfm-5b").shape, "codonfm-5b has an MLP without a gate"),
        (replace(SMALL.shape, experts=8, experts_per_token=2), "nano has 8 experts"),
        (replace(SMALL.shape, head_dim=64), "nano has heads of 64 features, 2 of which are not its width of 64"),
    ],
)
def test_what_is_no_block_of_this_project_is_said(shape, words):
    with pytest.raises(ValueError, match=words):
        blocks.config_of(replace(SMALL, shape=shape))


def test_dimensions_that_a_recipe_cannot_take_are_named():
    odd = replace(SMALL, shape=replace(SMALL.shape, intermediate=120))
    with pytest.raises(
        ValueError, match=r"te-current: layers.0.mlp.gate_proj.out_features = 120 is not divisible by 16"
    ):
        blocks.make_block(odd, CURRENT, Execution.EMULATED, CPU)


def test_too_little_memory_says_what_would_fit(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: type("P", (), {"total_memory": 40 * 2**30}))
    text = blocks.too_large(replace(TIMED_BLOCKS["llama3-8b"], sequence=65536), torch.device("cuda:0"))
    assert (
        text.startswith("llama3-8b: two blocks with 1 x 65536 tokens need about")
        and "a sequence of 32768 would fit" in text
    )
    none = blocks.too_large(TIMED_BLOCKS["llama3-405b"], torch.device("cuda:0"))
    assert none.endswith("even short sequences do not fit: take a larger GPU") or "would fit" in none


def test_a_setting_that_is_not_the_suites_is_named():
    timed = TIMED_BLOCKS["llama3-8b"]
    assert blocks.variant_of(timed, timed, Mode.GRAPHED, Execution.FUSED) == ""
    assert blocks.variant_of(timed, timed, Mode.EAGER, Execution.FUSED) == "eager"
    assert blocks.variant_of(replace(timed, sequence=8192), timed, Mode.GRAPHED, Execution.FUSED) == "1x8192"
    assert blocks.variant_of(SMALL, None, Mode.COMPILED_GRAPHED, Execution.NATIVE) == "2x32"


def test_linears_of_equal_dimensions_are_timed_once(eager):
    found = split.linears(SMALL, CURRENT, Execution.EMULATED, CPU)
    assert {(t.fqns, t.k, t.n) for t in found} == {
        (("attention.q_proj", "attention.o_proj"), 64, 64), (("attention.k_proj", "attention.v_proj"), 64, 32),
        (("mlp.gate_proj", "mlp.up_proj"), 64, 128), (("mlp.down_proj",), 128, 64),
    }  # fmt: skip
    assert all(len(t.bf16_seconds) >= 6 for t in found)
    assert split.linears(SMALL, CURRENT, Execution.FUSED, CPU) == []


def test_a_cpu_has_no_split():
    with pytest.raises(ValueError, match="a split lists the kernels of a GPU"):
        split.measure(blocks.subject(SMALL, CURRENT, Execution.EMULATED, CPU, Mode.EAGER), "s", [])


def test_the_parameters_of_the_published_blocks():
    """Llama 3 has 32, 80 and 126 of these blocks; with embeddings and head they are the published sizes."""
    for name, size in (("llama3-8b", 8.03e9), ("llama3-70b", 70.6e9), ("llama3-405b", 405.9e9)):
        shape = TIMED_BLOCKS[name].shape
        config: models.ModelConfig = blocks.config_of(TIMED_BLOCKS[name])
        whole = shape.layers * config.block_parameters + 2 * shape.vocab * shape.hidden + shape.hidden
        assert whole == pytest.approx(size, rel=2e-3)
