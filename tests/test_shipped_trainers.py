"""The trainers of examples/trainers: they pass, and a fault inside the framework is named."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from fp8parity.trainers import spec
from processes import run
from projects import commit

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
    "another count": (COUNT, ["--fp8=tensorwise"], "the loss left the step band around BF16's"),
    "other data": ("", ["--fp8=tensorwise", "--data-seed=7"], "trained on other batches than BF16"),
    "filter of nothing": ("", ["--fp8=tensorwise", "--keep=model"], "equal BF16's to the bit: nothing was quantized"),
}
"""A fault: what is planted in the script, what its recipe adds to the command, and what the message says."""


def test_every_example_names_its_trainers():
    files = sorted(EXAMPLES.glob("*/trainers.toml"))
    assert files and all(spec.load(path) for path in files)
    assert all(len((path.parent / "train.py").read_text().splitlines()) <= 100 for path in files)


@pytest.mark.slow
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
    (tmp_path / "suites").symlink_to(ROOT / "suites")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p fp8parity.gate.plugin\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    done = run("pytest", "suites/convergence", "--trainers", "trainers.toml", "--seeds", "2", "-n", "2", cwd=tmp_path)
    assert done.returncode == 1
    for recipe in ("bf16", "ao-tensorwise"):
        assert any(line.startswith("pass") and f" {recipe} " in line for line in done.stdout.splitlines()), done.stdout
    for name, (_, _, words) in FAULTS.items():
        message = next(line for line in done.stdout.splitlines() if line.startswith(f"{name}-hf-llama-native: "))
        assert words in message, message
