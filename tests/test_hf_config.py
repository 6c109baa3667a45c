"""What is read of a config.json equals what its model multiplies, for every causal LM of transformers, or is refused. No network."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fp8parity.workload import hf_config
from fp8parity.workload.hf_config import read_config
from fp8parity.workload.shapes import ModelShape
from processes import NIGHTLY

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

TYPES = sorted(transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
SAMPLE = [
    "bert", "bloom", "deepseek_v3", "falcon_h1", "gpt2", "gpt_oss", "jamba", "llama", "llama4_text", "mixtral", "nemotron_h", "opt", "qwen3_next",
]  # fmt: skip
LOOPS = ("dory", "gemma3n", "gemma3n_text", "hrm_text", "zamba", "zamba2")
"""Model types that run some of their blocks more than once."""
CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "num_hidden_layers": 2,
    "vocab_size": 32_000,
}  # fmt: skip
Sizes = dict[str, Counter[tuple[int, ...]]]
"""Name of a linear in its layer -> (groups, n, k) -> how many the model has. Of experts n and k are in order of size."""


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """Fail a test that opens a connection."""

    def refuse(*args: object) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config, default=str))
    return path


def name_in_layer(name: str) -> str:
    """mlp.experts.down_proj for model.layers.3.mlp.experts.down_proj."""
    outer, index, inner = re.fullmatch(r"((?:.*?\.)??(\d+)\.)?(.+?)(?:\.weight)?", name).groups()  # type: ignore[union-attr]
    return outer[:-1] if index and inner == "weight" else re.sub(r"\.\d+(?=\.)", "", inner)


def size(groups: int, n: int, k: int) -> tuple[int, ...]:
    return (groups, *sorted((n, k))) if groups > 1 else (groups, n, k)


def of_modules(model: Any) -> Sizes:
    """The linears that a model has by the classes of its modules, each weight once."""
    found: Sizes = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        turned = type(module).__name__ == "Conv1D"
        for name, p in module.named_parameters(prefix, recurse=False):
            grouped = p.dim() == 3 and type(module).__name__.endswith("Experts")
            if id(p) in seen:
                continue
            if grouped or (p.dim() == 2 and (turned or isinstance(module, torch.nn.Linear))):
                seen.add(id(p))
                short = "lm_head" if module is model.get_output_embeddings() else name_in_layer(name)
                n, k = p.shape[-2:][::-1] if turned else p.shape[-2:]
                # DeepSeek-V4 has a linear of several blocks.
                blocks = module.n_groups if type(module).__name__.endswith("GroupedLinear") else 1
                found.setdefault(short, Counter())[size(p.shape[0] if grouped else blocks, n // blocks, k)] += 1
    return found


def of_reading(shape: ModelShape) -> Sizes:
    """The same of what was read."""
    found: Sizes = {}
    for g in shape.linears:
        found.setdefault(g.name.removesuffix(f" {g.n}x{g.k}"), Counter())[size(g.groups, g.n, g.k)] += g.count
    return found


DEPTH = 8
"""Layers that are enough where a class has no list of its layers: a pass of 40 takes seconds."""


def defaults_of(kind: str) -> dict[str, Any]:
    """The class defaults of a model type, with fewer layers if nothing is said of each."""
    found: dict[str, Any] = transformers.CONFIG_MAPPING[kind]().to_dict()
    depth = found.get("num_hidden_layers") or 0
    each = any(isinstance(value, list) and len(value) >= depth for value in found.values())
    return found | ({"num_hidden_layers": DEPTH} if depth > DEPTH and not each and kind not in LOOPS else {})


def meta_model(config: dict[str, Any]) -> Any:
    """The decoder of a configuration, without data."""
    made = transformers.CONFIG_MAPPING[config["model_type"]].from_dict(dict(config))
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made.get_text_config(decoder=True))


def check(kind: str, folder: Path) -> tuple[list[str], str]:
    """Compare what is read of a model type with its modules. Return (differences, why it was refused)."""
    try:
        defaults = defaults_of(kind)
    except Exception as error:  # the class has no defaults
        return [], f"no defaults: {error}"
    try:
        shape = read_config(write(folder, defaults))
    except ValueError as error:
        return [], str(error).split(": ", 1)[1]
    model, got = meta_model(defaults), of_reading(shape)
    found = [f"{shape.parameters} parameters"] if shape.parameters != sum(p.numel() for p in model.parameters()) else []
    for name, sizes in of_modules(model).items():
        # A module that runs in a loop counts as often as it runs, at least once.
        ran = got.get(name, Counter())
        times = {ran[of] / sizes[of] for of in sizes}
        if ran.keys() != sizes.keys() or (times != {1} if kind not in LOOPS else min(times) < 1):
            found.append(f"{name}: read {dict(ran)}, has {dict(sizes)}")
    if not shape.unlike:  # dimensions describe these layers
        layer = sum(g.n * g.k * g.groups * g.count for g in shape.linears if g.place == "layer")
        one = sum(g.n * g.k * g.groups * g.count for g in shape.layer(1, joined=False))
        if one * shape.layers != layer:
            found.append(f"dimensions give {one * shape.layers} parameters in layers, not {layer}")
    return found, ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAMPLE)
def test_linears_of_a_model_type_equal_its_modules(kind, tmp_path):
    assert check(kind, tmp_path) == ([], "")


@pytest.mark.slow
@NIGHTLY
@pytest.mark.parametrize("part", range(4))  # processes can share it
def test_every_causal_model_is_right_or_refused(part, tmp_path):
    checked = {kind: check(kind, tmp_path) for kind in TYPES[part::4]}
    refused = {kind: why for kind, (_, why) in checked.items() if why}
    assert {kind: found for kind, (found, _) in checked.items() if found} == {}
    assert len(refused) < 0.35 * len(checked), refused


def test_mixed_layers_are_counted_as_they_run(tmp_path):
    """Nemotron 3 Nano."""
    keys = {
        "hidden_size": 2688, "intermediate_size": 1856, "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128,
        "vocab_size": 131072, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", "n_routed_experts": 128,
        "n_shared_experts": 1, "num_experts_per_tok": 6, "moe_intermediate_size": 1856, "moe_shared_expert_intermediate_size": 3712,
        "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
    }  # fmt: skip
    shape = read_config(write(tmp_path, {"model_type": "nemotron_h"} | keys))
    assert shape.parameters / 1e9 == pytest.approx(31.58, abs=0.01)
    assert "layers are not all alike" in shape.unlike
    assert {g.rows for g in shape.linears if g.groups > 1} == {6}
    assert ["2688, a router" in text for text in shape.left_out] == [True]


def test_experts_and_a_shared_expert_have_dimensions(tmp_path):
    """Llama 4 runs all experts on all tokens in transformers; a trainer runs those of a token. The vision tower is named."""
    text = {
        "model_type": "llama4_text", "hidden_size": 512, "intermediate_size": 256, "intermediate_size_mlp": 1024, "num_local_experts": 8,
        "num_experts_per_tok": 1, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "interleave_moe_layer_step": 1, "vocab_size": 1024,
    }  # fmt: skip
    shape = read_config(write(tmp_path, {"model_type": "llama4", "text_config": text}))
    assert (shape.unlike, shape.experts, shape.experts_per_token, shape.shared) == ("", 8, 1, 256)
    assert shape.left_out == ("vision", "feed_forward.router (8x512, a router)")
    assert [(g.name, g.m, g.n, g.k, g.groups) for g in shape.layer(64)][2:4] == [
        ("experts gate and up", 8, 512, 512, 8), ("experts down", 8, 512, 256, 8),
    ]  # fmt: skip


def test_a_block_that_runs_twice_counts_twice(tmp_path):
    """dory runs some of its blocks in a loop."""
    shape = read_config(write(tmp_path, defaults_of("dory")))
    (modules,) = of_modules(meta_model(defaults_of("dory")))["self_attn.q_proj"].values()
    assert {g.name: g.count for g in shape.linears}["self_attn.q_proj"] > modules


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"model_type": None}, "lacks the key model_type"),
        *(({key: None}, f"lacks the key {key}; add it") for key in hf_config.NEEDED),
        ({"model_type": "gpt2", "n_embd": None, "hidden_size": None, "n_layer": 2, "n_head": 2}, r"lacks the key n_embd \(or hidden_size\)"),
        ({"hidden_act": "swishy"}, "key hidden_act: 'swishy' is unknown"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"hidden_size": 2**40}, "transformers cannot build it"),
        ({"vocab_size": 2**33}, "lm_head is 8589934592x1024; a dimension of a GEMM is at most"),
        ({"num_attention_heads": 7}, "not a multiple of the number of attention heads"),
        ({"num_hidden_layers": 10**6}, "at most 1000 are read"),
        ({"model_type": "kimi_k2", "auto_map": {"AutoConfig": "a.B"}}, "needs its repository's own code, which is never run"),
        ({"model_type": "vit"}, "no causal language model"),
        ({"model_type": "bart"}, "is not run by text alone"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path, keys, words):
    path = write(tmp_path, {k: v for k, v in (CONFIG | keys).items() if v is not None})
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{words}") as caught:
        read_config(path)
    assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 500


def test_config_without_transformers_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(hf_config.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'not installed: pip install "fp8-parity\[hf\]"$'):
        read_config(write(tmp_path, CONFIG))
