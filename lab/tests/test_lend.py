"""``fp8parity lend``: the same weights and batches for another trainer."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from fp8parity.workload import corpus
from fp8parity.workload.models import build, cross_entropy
from fp8parity.workload.presets import presets
from fp8parity_lab import lending
from processes import run


def test_lent_model_has_the_loss_of_the_first_step(tmp_path):
    """In FP32 the product of the same weights is the same; in BF16 two roundings may differ."""
    transformers = pytest.importorskip("transformers")
    config, schedule = presets()["micro"].model, presets()["micro"].schedule
    folder = lending.write_llama(config, 3, tmp_path / "model")
    rows = next(lending.batches(corpus.load("topics"), schedule, 3))
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 1e-4)):
        own = build(config, 3).to(dtype)
        ours = float(cross_entropy(own, rows[:, :-1], rows[:, 1:]).detach())
        logits = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype)(rows[:, :-1]).logits.float()
        theirs = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).detach())
        assert theirs == pytest.approx(ours, rel=bound)


@pytest.mark.parametrize("kind", lending.FORMATS)
def test_lent_rows_are_those_of_the_loop(tmp_path, kind):
    schedule = replace(presets()["micro"].schedule, steps=3)
    data = corpus.load("topics")
    path = lending.FORMATS[kind](lending.batches(data, schedule, 1), tmp_path)
    found = READERS[kind](path)
    inputs, targets = data.batch(1, 2, schedule.rows, schedule.length)  # of the last step
    assert len(found) == 3 * schedule.rows
    assert [row[:-1] for row in found[-schedule.rows :]] == inputs.tolist()
    assert [row[1:] for row in found[-schedule.rows :]] == targets.tolist()


def test_model_with_experts_is_not_lent(tmp_path):
    done = run("fp8parity", "lend", "tiny-moe", "--out", str(tmp_path / "lent"))
    assert done.returncode == 2 and "tiny-moe has experts" in done.stderr


def _read_megatron(path: Path) -> list[list[int]]:
    """Read the files as megatron/core/datasets/indexed_dataset.py does: header, lengths, byte offsets, documents."""
    index, tokens = path.with_suffix(".idx").read_bytes(), np.fromfile(path, dtype=np.uint16)
    magic, version, code, count, documents = struct.unpack_from("<9sQBQQ", index)
    assert (magic, version, code, documents) == (b"MMIDIDX\x00\x00", 1, 8, count + 1)
    lengths = np.frombuffer(index, "<i4", count, 34)
    offsets = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    ends = np.frombuffer(index, "<i8", count + 1, 34 + 12 * count)
    assert list(ends) == list(range(count + 1)) and len(index) == 34 + 12 * count + 8 * (count + 1)
    return [tokens[at // 2 :][:length].tolist() for at, length in zip(offsets, lengths, strict=True)]


READERS = {
    "jsonl": lambda path: [json.loads(line)["input_ids"] for line in path.read_text().splitlines()],
    "datasets": lambda path: datasets.load_from_disk(path)["input_ids"][:],
    "megatron": _read_megatron,
}
"""What reads the rows of a format again."""
