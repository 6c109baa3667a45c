"""A layer of a Hugging Face model that is timed: it computes what the layer does in its model, and every linear is converted or named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fp8parity import cli, recipes
from fp8parity.cli import blocks as command
from fp8parity.records.cell import Execution, Mode
from own_models import CPU

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from fp8parity.timing import blocks  # noqa: E402 - with transformers only
from fp8parity.workload import hf_config, hf_experts, hf_layer, hf_model, hf_tiny  # noqa: E402

LAYERS = {
    "qwen3@1": 7, "gpt_oss@0": 20, "deepseek_v3@1": 24, "llama4_text@1": 23, "qwen3_next@0": 21, "nemotron_h@0": 2, "starcoder2@0": 6,
}  # fmt: skip
"""Model type and layer -> its linears that are converted, each expert's counted."""
Config = Callable[[str], Path]


@pytest.fixture
def config(tmp_path) -> Config:
    """Returns the config.json of a reduced model, for a text such as "qwen3@1"."""

    def write(kind: str) -> Path:
        text = hf_config.decoder_config(kind.partition("@")[0], {})[1]
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"model_type": text.model_type} | hf_tiny.reduced(text)))
        return path

    return write


def layer(config: Config, text: str, sequence: int = 64) -> hf_layer.LayerWorkload:
    return hf_layer.workload(config(text), int(text.partition("@")[2] or 0), 2, sequence)


@pytest.mark.parametrize("text", LAYERS)
def test_layer_computes_what_it_does_in_its_model(text, config):
    """To the bit: the model is built whole, its layer gets the weights of the timed one, and the layer the same input."""
    work = layer(config, text)
    alone = hf_layer.build(work, CPU)
    model: Any = hf_model.build(work.config, "cpu", attention=None)
    for p in model.parameters():
        p.data = p.data.bfloat16()
    name, stack = next(
        (n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == work.shape.layers
    )
    inside = hf_experts.separate(stack[work.number], balanced=True).train()
    inside.load_state_dict(alone.module.state_dict())
    inside.register_forward_pre_hook(lambda m, args: (alone.x, *args[1:]))
    found: list[Any] = []
    inside.register_forward_hook(lambda m, args, out: found.append(out[0] if isinstance(out, tuple) else out))
    model(inputs_embeds=alone.x, use_cache=False)
    out = alone.on(alone.module, alone.x)
    assert name and torch.equal(found[0], out) and out.isfinite().all()


def test_norms_around_a_layer_have_its_dtype(config, monkeypatch):
    """A GPU refuses a norm of BF16 values with FP32 weights, a CPU does not."""
    norm = mock.Mock(wraps=torch.nn.functional.layer_norm)
    monkeypatch.setattr(torch.nn.functional, "layer_norm", norm)
    hf_layer.build(layer(config, "starcoder2@0"), CPU)
    seen = [t for call in norm.call_args_list for t in call.args]
    assert {t.dtype for t in seen if isinstance(t, torch.Tensor)} == {torch.bfloat16}


@pytest.mark.parametrize("text", ["gpt_oss@0", "qwen3_next@0", "nemotron_h@0", "starcoder2@0"])
def test_every_linear_of_a_layer_is_converted_or_named(text, config, eager):
    """All parameters and the input have gradients, those of the recipe differ from BF16's by its quantization."""
    work, grads = layer(config, text), []
    for name, execution in (("bf16", Execution.NATIVE), ("te-current", Execution.EMULATED)):
        block = blocks.make_block(work, recipes.get(name), execution, CPU)
        grads.append(blocks.step_of(block, Mode.EAGER)(0).float())
        assert all(p.grad is not None for p in block.layers[0].parameters() if p.requires_grad)
    converted = {m.fqn.removeprefix("layers.0.") for m in block.converted.inventory}
    every = {fqn for fqn, m in hf_layer.build(work, CPU).module.named_modules() if isinstance(m, torch.nn.Linear)}
    assert converted == every - set(work.outline.in_bf16) and len(converted) == LAYERS[text]
    assert 1e-3 < (grads[1] - grads[0]).norm() / grads[0].norm() < 0.3


def test_experts_of_a_layer_are_balanced(config):
    """32 of 128 tokens times 2 for each of 8 experts, and the FLOPs count an expert for each token."""
    work = layer(config, "qwen3_moe")
    rows = hf_layer.build(work, CPU).rows()
    assert {n for fqn, n in rows.items() if "experts" in fqn} == {32} and rows["self_attn.q_proj"] == 128
    attention, expert = 64 * (64 + 2 * 32) + 64 * 64, 3 * 64 * 64
    assert work.outline.flops_per_token == 6 * (attention + 2 * expert)


def test_command_names_what_stays_in_bf16(config, monkeypatch, capsys):
    monkeypatch.setattr(command, "recipe_of", lambda args: recipes.get("te-current"))
    code = cli.main(
        ["block", str(config("qwen3_next@0")), "--layer", "0", "--recipe", "te-current", "--sequence", "64"]
    )
    said = capsys.readouterr()
    assert code == 2 and "this machine has none" in said.err
    assert said.out == "Qwen3NextDecoderLayer; in BF16: linear_attn.in_proj_ba, mlp.shared_expert_gate\n"


@pytest.mark.parametrize("number", [-1, 2])
def test_layer_that_is_not_there_is_refused(number, config):
    with pytest.raises(ValueError, match=f"config.json: it has layers 0 to 1, and no layer {number}$"):
        hf_layer.workload(config("qwen3"), number, 1, 64)


def test_fused_layer_is_refused(config):
    with pytest.raises(ValueError, match="replaces this project's block only; leave --layer or fused out"):
        blocks.make_block(layer(config, "qwen3"), recipes.get("te-current"), Execution.FUSED, CPU)
