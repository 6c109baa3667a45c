"""The trainers of examples/trainers: they pass, and a fault inside the framework is named."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.trainers import spec

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "trainers"


def test_every_example_names_its_trainers():
    files = sorted(EXAMPLES.glob("*/*.toml"))
    assert len(files) == 6 and all(spec.load(path) for path in files)
    assert all(len(path.read_text().splitlines()) <= 100 for path in EXAMPLES.glob("*/*.py"))


@pytest.mark.parametrize("records", sorted(EXAMPLES.glob("*/records-*.zip")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_committed_gate_is_green_and_on_the_page(records, tmp_path, capsys):
    report = tmp_path / "verdicts.json"
    words = ["judge", str(records), "--golden-dir", str(records.parent / "golden"), "--report", str(report)]
    code, out = main(words), capsys.readouterr().out
    assert code == 0 and re.search(r"Accept: all [34] checks are green\.", out)
    blamed = {v["detail"]["blame"] for v in json.loads(report.read_text())["verdicts"]}
    assert blamed == {"no change beyond the margin"}  # what a trainer does not log is no fault of its recipe
    page = (ROOT / "docs/trainers.md").read_text()
    rows = [line for line in out.splitlines() if line.startswith("pass") and " bf16 " not in line]
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
def test_committed_faults_inside_a_framework_are_named(place, capsys):
    path = EXAMPLES / place
    assert main(["judge", str(path), "--golden-dir", str(path.parent / "golden")]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if ": loss parity fail: " in line]
    assert len(lines) == len(PLANTED[place])
    for name, words in PLANTED[place].items():
        assert any(line.startswith(f"{name}-") and words in line for line in lines), name
