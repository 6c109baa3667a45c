"""The trainers of examples/trainers: they pass, and a fault inside the framework is named."""

from __future__ import annotations

import json
import re
import shutil
import struct
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from fp8parity.trainers import lend, spec
from fp8parity.workload import corpus
from fp8parity.workload.models import build, cross_entropy
from fp8parity.workload.presets import presets
from processes import NIGHTLY, run
from projects import complete

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "trainers"
HUGGING_FACE = EXAMPLES / "hugging-face"
STALE = """
    from torchao.float8.float8_linear import Float8Linear
    kept = {}
    def stale(self, x):  # the weight of the first step, with the gradient of today's
        first = kept.setdefault(id(self), self.weight.detach().clone())
        return torch.nn.functional.linear(x, first + self.weight - self.weight.detach())
    Float8Linear.forward = stale
"""
COUNT = """
    own = Trainer.compute_loss
    Trainer.compute_loss = lambda self, *args, **more: own(self, *args, **more) / 2
"""
FAULTS = {
    "stale weights": (STALE, ["--fp8=tensorwise"], "the gap to BF16 is outside the margin"),
    "another count": (COUNT, ["--fp8=tensorwise"], "such a gain is a fault"),
    "other data": ("", ["--fp8=tensorwise", "--data-seed=7"], "trained on other batches than BF16"),
    "filter of nothing": (
        "",
        ["--fp8=tensorwise", "--keep", "model", "lm_head"],
        "equal BF16's to the bit: nothing was quantized",
    ),
}
"""A fault: what is planted in the script, what its recipe adds to the command, and what the message says."""


def test_every_example_names_its_trainers():
    files = sorted(EXAMPLES.glob("*/*.toml"))
    assert len(files) == 6 and all(spec.load(path) for path in files)
    assert all(len(path.read_text().splitlines()) <= 100 for path in EXAMPLES.glob("*/*.py"))


@pytest.mark.parametrize("records", sorted(EXAMPLES.glob("*/records-*.zip")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_committed_gate_is_green_and_on_the_page(records, tmp_path):
    report = tmp_path / "verdicts.json"
    words = ["judge", str(records), "--golden-dir", str(records.parent / "golden"), "--report", str(report)]
    done = run("fp8parity", *words)
    assert done.returncode == 0 and re.search(r"Accept: all [34] checks are green\.", done.stdout)
    blamed = {v["detail"]["blame"] for v in json.loads(report.read_text())["verdicts"]}
    assert blamed == {"no change beyond the margin"}  # what a trainer does not log is no fault of its recipe
    page = (ROOT / "docs/trainers.md").read_text()
    rows = [line for line in done.stdout.splitlines() if line.startswith("pass") and " bf16 " not in line]
    assert len(rows) >= 2
    for row in rows:
        assert " ".join(row.split()[1:4]) in page, row


PLANTED = {
    "megatron/faults-h200.zip": {
        "stale-weights": "seed 0 ended +10.4% from BF16's loss and does not follow it",
        "another-count": "the gradient norm left its band around BF16's: steps 0 to 9, seed 0: 1.639, band 3.301",
        "other-data": "seed 0 trained on other batches than BF16",
        "fp8-off": "the losses of seed 0 equal BF16's to the bit",
    },
    "accelerate/faults-cpu.zip": {
        "stale-weights": "seed 0 ended +40.9% from BF16's loss and does not follow it",
        "another-count": "the gradient norm left its band around BF16's: steps 0 to 9, seed 0: 0.4328, band 0.8728",
        "other-data": "seed 0 trained on other batches than BF16",
        "filter-of-nothing": "the losses of seed 0 equal BF16's to the bit",
    },
}
"""Committed runs of faults that were planted in a framework, and what the message says."""


@pytest.mark.parametrize("place", PLANTED)
def test_committed_faults_inside_a_framework_are_named(place):
    path = EXAMPLES / place
    done = run("fp8parity", "judge", str(path), "--golden-dir", str(path.parent / "golden"))
    lines = [line for line in done.stdout.splitlines() if ": loss parity fail: " in line]
    assert done.returncode == 1 and len(lines) == len(PLANTED[place])
    for name, words in PLANTED[place].items():
        assert any(line.startswith(f"{name}-") and words in line for line in lines), name


@pytest.mark.slow
@NIGHTLY
def test_fault_inside_hugging_face_is_named(tmp_path):
    pytest.importorskip("accelerate", reason="Hugging Face's Trainer needs accelerate")
    shutil.copytree(HUGGING_FACE, tmp_path, dirs_exist_ok=True)
    script, table = tmp_path / "train.py", tmp_path / "trainers.toml"
    planted = "".join(
        f"    if args.fault == {name!r}:{code.replace(chr(10), chr(10) + '    ')}\n"
        for name, (code, _, _) in FAULTS.items()
        if code
    )
    text = script.read_text().replace(
        "    args = parser.parse_args()\n",
        f'    parser.add_argument("--fault")\n    args = parser.parse_args()\n{planted}',
    )
    script.write_text(text)
    rows = {name: [f"--fault={name}", *added] for name, (_, added, _) in FAULTS.items()}
    recipes = "".join(f'"{name}" = {added}\n' for name, added in rows.items()).replace("'", '"')
    table.write_text(table.read_text().replace('ao-rowwise = ["--fp8=rowwise"]\n', recipes))
    complete(tmp_path)
    done = run("pytest", "suites/convergence", "--trainers", "trainers.toml", "-n", "2", cwd=tmp_path)
    assert done.returncode == 1
    for recipe in ("bf16", "ao-tensorwise"):
        assert any(line.startswith("pass") and f" {recipe} " in line for line in done.stdout.splitlines()), done.stdout
    for name, (_, _, words) in FAULTS.items():
        message = next(line for line in done.stdout.splitlines() if line.startswith(f"{name}-hf-llama-native: "))
        assert words in message, message


def test_lent_model_has_the_loss_of_the_first_step(tmp_path):
    """In FP32 the product of the same weights is the same; in BF16 two roundings may differ."""
    transformers = pytest.importorskip("transformers")
    config, schedule = presets()["micro"].model, presets()["micro"].schedule
    folder = lend.write_llama(config, 3, tmp_path / "model")
    rows = next(lend.batches(corpus.load("topics"), schedule, 3))
    for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 1e-4)):
        own = build(config, 3).to(dtype)
        ours = float(cross_entropy(own, rows[:, :-1], rows[:, 1:]).detach())
        logits = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=dtype)(rows[:, :-1]).logits.float()
        theirs = float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).detach())
        assert theirs == pytest.approx(ours, rel=bound)


@pytest.mark.parametrize("kind", lend.FORMATS)
def test_lent_rows_are_those_of_the_loop(tmp_path, kind):
    schedule = replace(presets()["micro"].schedule, steps=3)
    data = corpus.load("topics")
    path = lend.FORMATS[kind](lend.batches(data, schedule, 1), tmp_path)
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
