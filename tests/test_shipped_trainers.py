"""The trainers of examples/trainers: they pass, and a fault inside the framework is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.trainers import spec
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


@pytest.mark.parametrize("records", sorted(EXAMPLES.glob("*/records-*.zip")), ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_committed_gate_is_green_and_on_the_page(records, tmp_path, capsys):
    report = tmp_path / "verdicts.json"
    words = ["judge", str(records), "--golden-dir", str(records.parent / "golden"), "--report", str(report)]
    code, out = main(words), capsys.readouterr().out
    assert code == 0 and re.search(r"Accept: all [34] checks are green\.", out)
    blamed = {v["detail"]["blame"] for v in json.loads(report.read_text())["verdicts"]}
    assert blamed == {"no change beyond the margin"}  # what a trainer does not log is no fault of its recipe
    page = (EXAMPLES / "README.md").read_text()
    rows = [line for line in out.splitlines() if line.startswith("pass") and " bf16 " not in line]
    assert len(rows) >= 2
    for row in rows:
        assert " ".join(row.split()[1:4]) in page, row


PLANTED = {
    "megatron/faults-h200.zip": {
        "stale-weights": "seed 0 ended +10.4% from BF16's loss and does not follow it",
        "another-count": "the gradient norm left its band around BF16's: steps 0 to 9, seed 0: -50.357% is below",
        "other-data": "seed 0 trained on other batches than BF16",
        "fp8-off": "the losses of seed 0 equal BF16's to the bit",
    },
    "accelerate/faults-cpu.zip": {
        "stale-weights": "seed 0 ended +40.9% from BF16's loss and does not follow it",
        "another-count": "the gradient norm left its band around BF16's: steps 0 to 9, seed 0: -50.4",
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
