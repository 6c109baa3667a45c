"""What a prediction counts by name: the modules of a linear, the attention of a fused layer, and the bytes of a step."""

from __future__ import annotations

from dataclasses import replace

import made_up_gpu as gpu
import pytest
import torch
from fp8parity.prediction.step import ATTENTION, MODULES, memory_needed, quantized_shares, step_time
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.times import Part
from fp8parity.workload import shapes
from fp8parity.workload.models import ModelConfig, Transformer
from fp8parity.workload.shapes import ModelShape, Workload

CURRENT = RECIPES["te-current"]
TINY = ModelShape("one", hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, layers=3, vocab=32)


def test_the_modules_of_a_linear_are_those_of_the_model():
    with torch.device("meta"):
        block = Transformer(ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128)).layers[0]
    linears = {name for name, module in block.named_modules() if isinstance(module, torch.nn.Linear)}
    assert {name for names in MODULES.values() for name in names} == linears


@pytest.mark.parametrize(
    ("left_out", "shares"),
    [
        ("q_proj", {"qkv": 2 / 3, "q": 0}),
        ("k_proj", {"qkv": 2 / 3, "k and v": 1 / 2}),
        ("v_proj", {"qkv": 2 / 3, "k and v": 1 / 2}),
        ("o_proj", {"o": 0}),
        ("gate_proj", {"gate and up": 1 / 2}),
        ("up_proj", {"gate and up": 1 / 2, "up": 0}),
        ("down_proj", {"down": 0}),
    ],
)
def test_a_filter_leaves_out_the_modules_that_it_names(left_out, shares):
    found = quantized_shares(shapes.get("base"), replace(CURRENT, filters=(left_out, "lm_head")), 2)
    assert found == pytest.approx(dict.fromkeys(MODULES, 1.0) | shares)


def test_a_fused_layer_has_the_attention_of_its_vendor():
    found, work = gpu.made(), shapes.get("base")
    twice = [t.model_copy(update={"form": "te", "seconds": 2 * t.seconds}) for t in found.profile.of(Part.ATTENTION)]
    own = replace(found, profile=found.profile.model_copy(update={"times": [*found.profile.times, *twice]}))
    native, fused = (
        step_time(own, work, CURRENT, execution).parts[ATTENTION] for execution in (Execution.NATIVE, Execution.FUSED)
    )
    assert fused == pytest.approx(2 * native)
    assert step_time(found, work, CURRENT, Execution.FUSED).parts[ATTENTION] == pytest.approx(native)


@pytest.mark.parametrize(
    ("shape", "weights", "token"),
    [
        (TINY, 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16, 2 * (6 * 8 + 2 * 8 + 2 * 4 + 3 * 16)),
        (replace(TINY, gated=False), 8 * 8 + 2 * 4 * 8 + 8 * 8 + 2 * 8 * 16, 2 * (6 * 8 + 2 * 8 + 2 * 4 + 2 * 16)),
        (
            replace(TINY, experts=4, experts_per_token=2, shared=24),
            8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * (4 * 16 + 24),
            2 * (6 * 8 + 2 * 8 + 2 * 4 + 3 * (2 * 16 + 24)),
        ),
    ],
)
def test_memory_is_that_of_weights_and_of_what_backward_keeps(shape, weights, token):
    """A block holds a weight and its gradient in BF16 (4 bytes), a step 18 bytes a parameter. A token keeps 10 bytes of each logit."""
    work = Workload(shape, 2, 16)
    assert memory_needed(work, block=True) == (4 * weights, 32 * token)
    parameters = 3 * (weights + 2 * 8) + 8 + 2 * 32 * 8
    assert memory_needed(work) == (18 * parameters, 32 * (3 * token + 10 * 32))
