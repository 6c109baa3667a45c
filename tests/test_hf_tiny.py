"""A tiny model of a Hugging Face architecture: its experts as linears give what its class gives, every linear is converted or named, what
cannot be trained is refused in one sentence, and a short training is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fp8parity import recipes
from fp8parity.cli import main
from fp8parity.recipes.conversion import linears
from fp8parity.records.cell import Execution
from own_models import CPU
from processes import run
from projects import complete

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from fp8parity.workload import corpus, hf_config, hf_experts, hf_model, hf_tiny  # noqa: E402 - with transformers only

MOE = ("gpt_oss", "deepseek_v3", "qwen3_moe", "llama4_text", "nemotron_h", "laguna")
"""Classes with experts: with biases and [in, out] weights, with a sigmoid router, on all tokens, with one matrix, and the rest."""


def tiny(name: str) -> hf_tiny.TinyModel:
    [found] = hf_tiny.named(f"hf:{name}")
    return found


@pytest.mark.parametrize("kind", MOE)
def test_experts_as_linears_equal_the_class(kind):
    """In FP32, to rounding: logits and the gradient of the embedding. Of 1 x 21 tokens some experts have none, others no multiple of 32."""
    text = hf_config.decoder_config(kind, {})[1]
    keys, found = hf_tiny.reduced(text), []
    for change in (lambda m: m, hf_experts.separate):
        torch.manual_seed(0)
        model: Any = change(hf_model.build(type(text)(**keys), "cpu"))
        logits = model(input_ids=(torch.arange(21)[None] * 37) % 256, use_cache=False).logits
        logits.square().mean().backward()
        found.append((logits.detach(), model.get_input_embeddings().weight.grad))
        holders = [m for m in model.modules() if isinstance(m, hf_experts.ExpertLinears)]
    assert len(holders) >= 2
    torch.testing.assert_close(found[1], found[0], rtol=2e-4, atol=2e-5)


OF_TORCHAO = (("gpt_oss", "ao-mxfp8"), ("nemotron_h", "ao-mxfp8"), ("llama4_text", "ao-tensorwise"))
"""One grouped GEMM for the experts of a name; and a class that adds to the output of a linear in place, which no vendor's
linear allows."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "by"), [*((name, "te-mxfp8") for name in hf_tiny.NAMES), *OF_TORCHAO])
def test_every_linear_is_converted_or_named(name, by, eager):
    """With recipes that ask most of features and rows. A router is never converted, and every parameter, also a bias, has a gradient."""
    model = tiny(name)
    module = model.initial(0, CPU)
    every = set(linears(module))
    recipe = replace(recipes.get(by), filters=("lm_head", *model.keep))
    converted = recipes.apply(module, recipe, Execution.EMULATED, tokens=model.rows_of(model.schedule, CPU))
    names = {m.fqn for m in converted.inventory}
    assert names == every - {"lm_head"} - set(model.keep) and len(names) >= 8
    assert not [n for n in names if n.endswith(("router", ".gate", "shared_expert_gate"))]
    assert [n for n, p in module.named_parameters() if p.dim() == 3 and min(p.shape[1:]) > 16] == []
    model.loss_of(converted.model, *model.batch(0, 0)).backward()
    assert [
        n for n, p in converted.model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())
    ] == []


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


def test_config_of_a_model_is_reduced_by_its_own_keys(tmp_path):
    """One layer of each kind in the order of the file, its own switches, the sizes of a tiny model."""
    given = {
        "model_type": "gpt_oss", "num_hidden_layers": 5, "hidden_size": 2880, "num_local_experts": 32, "swiglu_limit": 5.0,
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    }  # fmt: skip
    model = tiny(str(write(tmp_path, given)))
    assert model.name == f"hf-{tmp_path.name}"
    assert model.config["layer_types"] == ["full_attention", "sliding_attention"]
    assert {k: model.config[k] for k in ("num_hidden_layers", "hidden_size", "num_local_experts", "swiglu_limit")} == {
        "num_hidden_layers": 2, "hidden_size": 64, "num_local_experts": 8, "swiglu_limit": 5.0,
    }  # fmt: skip
    assert model.identity()["config"] == model.config != tiny("gpt_oss").config


REFUSED = {
    "gpt2": "transformer.h.0.attn.c_attn.weight is multiplied by Conv1D, which no recipe converts",
    "bert-generation": "its logits depend on later tokens, which it predicts",
    "mra": "its logits do not depend on later tokens: it is no encoder",
    "vit": "model_type vit: transformers has no causal or masked language model of it",
    "esmc": "its tiny model does not run: IndexError",
    "qwen33": "unknown model type of transformers 'qwen33': did you mean qwen3",
    "dbrx": "transformers cannot build it: AttributeError",
    "blt": "its tiny configuration is refused: AttributeError",
    "nothing*": "unknown pattern of a Hugging Face architecture",
    "no/such/config.json": "no/such/config.json",
}


@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_trained_is_refused_in_one_sentence(name, words):
    with pytest.raises(ValueError, match=words.replace("*", ".")) as caught:
        hf_tiny.named(f"hf:{name}")
    assert len(str(caught.value).splitlines()) == 1 and "MxKxN" not in str(caught.value)


def test_encoder_predicts_masked_tokens_alone():
    """The masks are those of seed and step; another fingerprint than that of the corpus says so."""
    model = tiny("modernbert")
    data = model.data("topics")
    ids, targets = model.batch(0, 0)
    chosen, plain = ids == corpus.MASK, corpus.load("topics").batch(0, 0, 16, 64)[0]
    assert set(chosen.sum(1).tolist()) == {19} and torch.equal(targets[chosen], plain[chosen])
    assert torch.equal(ids[~chosen], plain[~chosen]) and set(targets[~chosen].tolist()) == {corpus.IGNORED}
    masks = [data.batch(*at, 16, 64)[0] == corpus.MASK for at in ((0, 0), (0, 1), (1, 0))]
    assert [torch.equal(chosen, mask) for mask in masks] == [True, False, False]
    assert data.floor is None and data.fingerprint != corpus.load("topics").fingerprint
    module = model.initial(0, CPU)
    loss = torch.nn.functional.cross_entropy(module(input_ids=ids).logits.float()[chosen], plain[chosen])
    assert model.loss_of(module, ids, targets).item() == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["bert", "eurobert"])
def test_other_encoders_have_a_masked_loss(kind):
    assert tiny(kind).masked and not tiny("qwen3").masked


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(hf_tiny.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'^--model hf:qwen3: it is built by .*: pip install "fp8-parity\[hf\]"$'):
        hf_tiny.named("hf:qwen3")


def test_architectures_are_listed_and_described(capsys):
    assert main(["recipes", "hf:"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [f"hf:{n}" for n in hf_tiny.NAMES]
    assert main(["recipes", "hf:qwen3_next"]) == 0
    assert "shared_expert_gate" in capsys.readouterr().out.partition("in BF16")[2]


@pytest.mark.slow
def test_gate_takes_an_architecture(tmp_path):
    """Its cells are those of a model of one's own."""
    terms = ("suites/convergence", "--model", "hf:qwen3*", "--recipe", "te-current", "--collect-only", "-q")
    done = run("pytest", *terms, cwd=complete(tmp_path))
    assert done.returncode == 0 and "test_loss_parity[te-current-hf-qwen3_next-emulated]" in done.stdout, done.stderr
    assert "micro" not in done.stdout
