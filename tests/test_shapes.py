"""The GEMMs of models: their sizes against parameter counts that others published, configurations of Hugging Face, lists of shapes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from fp8parity.workload import hf_config, shapes
from fp8parity.workload.models import MODELS
from fp8parity.workload.shapes import GemmShape, ModelShape

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip


def weights(shape: ModelShape, *, joined: bool = True) -> int:
    """The number of weights of all linears and of the embedding, which has the size of the head."""
    layer = sum(g.n * g.k * g.groups * g.count for g in shape.layer(1, joined=joined))
    heads = sum(g.n * g.k for g in shape.head(1)) * (1 if shape.tied else 2)
    return layer * shape.layers + heads


@pytest.mark.parametrize(("name", "billions"), [("llama3-8b", 8.030), ("llama3-70b", 70.553), ("llama3-405b", 405.85)])
def test_llama_has_its_published_number_of_weights(name, billions):
    """Only the weights of the norms are missing, 0.3 to 4 million."""
    assert weights(shapes.get(name).shape) / 1e9 == pytest.approx(billions, rel=1e-4)


def test_codonfm_has_the_work_of_the_published_table():
    """19.17 TFLOP a layer, in the three GEMMs of four linears, and M = 15,872."""
    codon = shapes.get("codonfm-5b")
    layer = codon.shape.layer(codon.tokens)
    assert [(g.name, g.m, g.k, g.n) for g in layer] == [
        ("qkv", 15872, 4096, 12288), ("o", 15872, 4096, 4096), ("up", 15872, 4096, 16384), ("down", 15872, 16384, 4096),
    ]  # fmt: skip
    assert 3 * sum(g.flops for g in layer) == pytest.approx(19.17e12, rel=5e-4)
    assert codon.shape.head(codon.tokens) == []


@pytest.mark.parametrize("model", [m for m in MODELS if m.name in ("small", "base", "1b")], ids=lambda m: m.name)
def test_the_own_sizes_are_those_of_the_models(model):
    preset = shapes.get(model.name)
    norms = (2 * model.layers + 1) * model.dim
    assert weights(preset.shape) == model.parameters - norms
    assert preset.tokens == 16384


@pytest.mark.parametrize("name", shapes.known())
def test_separate_projections_do_the_same_work(name):
    shape = shapes.get(name).shape
    assert weights(shape, joined=False) == weights(shape)
    assert [g.name for g in shape.layer(16, joined=False)][:2] == ["q", "k and v"]


def test_an_unknown_preset_names_near_ones():
    with pytest.raises(ValueError, match=r"unknown model 'llama3-7b': did you mean llama3-70b or llama3-8b.*config.json or MxKxN"):
        shapes.get("llama3-7b")


def read(tmp_path, **changes):
    """The shape of the configuration of LLAMA with changes; None removes a key."""
    data = {k: v for k, v in (LLAMA | changes).items() if v is not None}
    folder = tmp_path / "my-model"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data))
    return hf_config.read(folder)


def test_a_configuration_of_llama_gives_the_preset(tmp_path):
    assert read(tmp_path) == replace(shapes.get("llama3-8b").shape, name="my-model")
    assert read(tmp_path, _name_or_path="meta-llama/Llama 3/").name == "Llama-3"


def test_experts_are_a_grouped_gemm(tmp_path):
    """Mixtral 8x7B: two of eight experts, so each expert has a quarter of the tokens."""
    shape = read(tmp_path, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
    assert shape.layer(4096)[2:] == [
        GemmShape("experts gate and up", 1024, 28672, 4096, groups=8), GemmShape("experts down", 1024, 4096, 14336, groups=8),
    ]  # fmt: skip
    with_shared = read(tmp_path, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=1024, shared_expert_intermediate_size=2048)
    assert [(g.name, g.m, g.n) for g in with_shared.layer(4096)[2:]] == [
        ("experts gate and up", 512, 2048), ("experts down", 512, 4096), ("shared gate and up", 4096, 4096), ("shared down", 4096, 4096),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "up"), [("llama", "gate and up"), ("phi3", "gate and up"), ("phi", "up"), ("gpt2", "up"), ("gpt_oss", "gate and up")]
)
def test_the_type_says_whether_the_mlp_is_gated(tmp_path, kind, up):
    assert read(tmp_path, model_type=kind).layer(16)[2].name == up


def test_older_names_of_keys(tmp_path):
    gone = dict.fromkeys(LLAMA)
    shape = read(tmp_path, **gone | {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257})
    assert (shape.hidden, shape.intermediate, shape.kv_heads, shape.head_dim, shape.layers) == (768, 3072, 12, 64, 12)
    inner = read(tmp_path, **gone | {"model_type": "vlm", "text_config": LLAMA})
    assert inner == read(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, r"config.json: lacks the key hidden_size \(or n_embd, d_model\)"),
        ({"vocab_size": None}, r"config.json: lacks the key vocab_size; add it"),
        ({"intermediate_size": None}, "lacks the key intermediate_size"),
        ({"num_local_experts": 8}, "lacks the key num_experts_per_tok"),
        ({"hidden_size": "4096"}, "key hidden_size: '4096' is not a whole number"),
        ({"num_attention_heads": -1}, "key num_attention_heads: '-1' is not"),
        ({"num_attention_heads": 33}, "hidden width 4096 is not divisible by 33 heads; add the key head_dim"),
        ({"kv_lora_rank": 512}, "key kv_lora_rank: its attention has latent projections"),
        ({"first_k_dense_replace": 3}, "some of its layers are dense"),
    ],
)
def test_a_wrong_configuration_names_the_key(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        read(tmp_path, **changes)


def test_a_file_that_is_no_configuration(tmp_path):
    path = tmp_path / "c.json"
    path.write_text("[1]")
    with pytest.raises(ValueError, match=r"c.json: is no object of keys"):
        hf_config.read(path)


def test_a_list_of_shapes():
    found = shapes.parse_list("15872x4096x12288, 16x32x64,15872x4096x12288")
    assert found == [GemmShape("15872x4096x12288", 15872, 12288, 4096, count=2), GemmShape("16x32x64", 16, 64, 32)]
    assert shapes.looks_like_list("16x32x64")
    assert not shapes.looks_like_list("x1b.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [("16x32", "'16x32' is no GEMM"), ("16x32x64,", "'' is no GEMM"), ("0x1x1", "from 1 to"), ("3000000000x1x1", "from 1")],
)
def test_a_wrong_list_names_the_part(text, words):
    with pytest.raises(ValueError, match=words):
        shapes.parse_list(text)
