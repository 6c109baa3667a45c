"""Models, corpora and random bits: the same numbers everywhere."""

import hashlib
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fp8parity.numerics import prng
from fp8parity.workload import corpus, models, topics
from fp8parity.workload.config import MIXED, MODELS, ModelConfig
from fp8parity.workload.models import build, weights_hash
from fp8parity.workload.schedule import SCHEDULES, spec_hash

SMALL = ModelConfig("x", dim=32, layers=2, heads=4, kv_heads=2, hidden=64, bias=True, tied=True)


def test_splitmix_is_the_published_one():
    """First outputs of SplitMix64 for seed 1234567 (Vigna's reference implementation)."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [v % 2**64 for v in prng.bits(1234567, 0, 3).tolist()] == wanted
    assert torch.equal(prng.bits(5, 2, 3), prng.bits(5, 0, 5)[2:])


SIZES = {"micro": 1.3e5, "tiny": 1e6, "mini": 15e6, "small": 125e6, "base": 350e6, "1b": 1.2e9}


@pytest.mark.parametrize("config", [*MODELS, *MIXED], ids=lambda m: m.name)
def test_preset_sizes(config):
    assert config.experts or abs(config.parameters / SIZES[config.name] - 1) < 0.08
    with torch.device("meta"):
        assert sum(p.numel() for p in models.Transformer(config).parameters()) == config.parameters
    multiple = 64 if config.name == "micro" else 128
    assert config.dim % multiple == config.hidden % multiple == 0
    assert (config.kv_heads * config.head_dim) % 32 == 0
    assert config.name in SCHEDULES


def test_initial_weights_are_pinned():
    """By hash: another library version, or a change of the generator, would move every golden."""
    first, again, other = (weights_hash(dict(build(MODELS[1], seed).named_parameters())) for seed in (0, 0, 1))
    assert first == again != other
    assert first.startswith("ce930ae00bb3c300")
    assert weights_hash(dict(build(MODELS[0], 0).named_parameters())).startswith("1b5ea5e466a29239")


def test_options_of_the_model():
    model = build(SMALL, 0)
    assert model.lm_head.weight is model.embedding.weight
    assert model.get_submodule("layers.0.attention.q_proj").bias is not None
    ids = torch.arange(12).view(1, 12)
    y = model(ids)
    assert y.shape == (1, 12, 256)
    changed = ids.clone()
    changed[0, 8:] = 99
    assert torch.equal(model(changed)[:, :8], y[:, :8])  # causal
    assert not torch.equal(model(changed)[:, 8:], y[:, 8:])


def test_batches_depend_on_seed_and_step_alone():
    stream = corpus.load("topics")
    x, y = stream.batch(3, 7, 4, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(stream.batch(3, 7, 4, 16)[0], x)
    assert not torch.equal(stream.batch(3, 8, 4, 16)[0], x)
    assert not torch.equal(stream.batch(4, 7, 4, 16)[0], x)
    assert torch.equal(stream.held_out(8, 16)[0], stream.held_out(8, 16)[0])


def test_text_files_and_parquet_give_the_same_stream(tmp_path):
    text = "To be, or not to be. " * 3000
    (tmp_path / "a.txt").write_text(text)
    pq.write_table(pa.table({"text": [text]}), tmp_path / "a.parquet")
    plain, table = (corpus.load(f"text:{tmp_path}/a.{e}") for e in ("txt", "parquet"))
    assert plain.fingerprint == table.fingerprint
    assert bytes(plain.train[:20].tolist()) == b"To be, or not to be."
    assert plain.floor is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topcs", "unknown corpus 'topcs': did you mean topics"),
        ("topics:x", "give topics"),
        ("text:/no/such/file.txt", "no such file /no/such/file.txt"),
        ("hf:", "write hf:NAME"),
    ],
)
def test_bad_corpora(name, message):
    with pytest.raises(ValueError, match=message):
        corpus.load(name)


def test_a_text_without_datasets_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "c.txt").write_text("text")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"c\.txt needs the package datasets, .*fp8-parity\[suites\]"):
        corpus.load(f"text:{tmp_path / 'c.txt'}")


def test_short_or_columnless_text_is_refused(tmp_path):
    (tmp_path / "s.txt").write_text("short")
    with pytest.raises(ValueError, match="6 bytes are too few"):
        corpus.load(f"text:{tmp_path / 's.txt'}")
    pq.write_table(pa.table({"body": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(ValueError, match=r"no column 'text' among \['body'\]"):
        corpus.load(f"text:{tmp_path / 'b.parquet'}")


def test_spec_hash_depends_on_all_but_threads():
    tiny, schedule = MODELS[0], SCHEDULES["tiny"]
    base = spec_hash(tiny, schedule, "topics")
    assert base == spec_hash(tiny, replace(schedule, threads=2), "topics")
    others = [
        (tiny, replace(schedule, lr=1.0), "topics"),
        (tiny, schedule, "x"),
        (replace(tiny, dim=256), schedule, "topics"),
    ]
    assert len({base, *(spec_hash(*other) for other in others)}) == 4


def test_topics_bytes_are_pinned():
    text = topics.tokens(2**16, "train")
    assert (
        hashlib.sha256(text.tobytes()).hexdigest() == "45d5b993c43e38ea723162518005221b7fcc868e9e43ebdf276f798a7b510864"
    )
    assert not np.array_equal(text, topics.tokens(2**16, "validation"))


def test_entropy_rate_equals_that_of_the_text():
    """The mean information of 250,000 bytes is within 0.5% of the exact rate."""
    text = topics.tokens(132 * 2000, "train").reshape(2000, 4, 33).astype(int)
    p = topics.weights() / topics.weights().sum(2, keepdims=True)
    before = np.concatenate([np.zeros((2000, 4, 1), int), text[:, :, 1:-1]], axis=2)
    information = -np.log(p[text[:, :, :1] - 64, before, text[:, :, 1:]]).sum() + 2000 * np.log(4)
    assert information / text.size == pytest.approx(topics.entropy_rate(), rel=0.005)


def test_topics_entropies_leave_context_to_learn():
    """The signal of the corpus: the loss falls from unigram to bigram, and from bigram to the entropy rate."""
    stream = corpus.load("topics")
    assert stream.unigram == pytest.approx(4.084, abs=0.001)
    assert stream.bigram == pytest.approx(3.647, abs=0.001)
    assert stream.floor == pytest.approx(3.2993, abs=0.0001)
