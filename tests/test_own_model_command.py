"""The commands of docs/your-model.md in a user's project: record the golden of a model that is not ours, then judge recipes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import own_models
import pytest
from processes import Done, run
from projects import commit

ROOT = Path(__file__).parents[1]


def make(folder: Path) -> Path:
    """The files of the page with a short schedule, and our suites. There is no conftest.py."""
    own_models.write(folder, own_models.SHORT)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib -p fp8parity.gate.plugin\n")
    (folder / "suites").symlink_to(ROOT / "suites")
    (folder / "golden").mkdir()
    (folder / "golden" / "policy.toml").write_text(
        own_models.policy()
        .replace("least_seeds = 3", "least_seeds = 2")
        .replace("[[loss]]", "[[loss]]\nmin_loss_drop = 0.05")
    )
    (folder / ".gitignore").write_text(".parity/\nout.*\n__pycache__/\n.pytest_cache/\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    commit(folder)
    return folder


def start(project: Path, *args: str) -> Done:
    return run("pytest", "suites/convergence", "--model-factory", "my_models:gpt2", *args, cwd=project)


@pytest.mark.slow
def test_golden_is_recorded_then_judged(tmp_path):
    project = make(tmp_path)
    done = start(project, "--golden-update")
    assert done.returncode == 0, done.stdout
    assert "golden: my-gpt2 on chain: + " in done.stdout
    golden = json.loads((project / "golden" / "loss" / "my-gpt2-chain.json").read_text())
    assert [len(s["replicas"]) for s in golden["seeds"]] == [1, 1] and golden["gradients"] == []
    commit(project)
    done = start(project, "--recipe", "te-current", "--recipe", "bf16")
    assert done.returncode == 0, done.stdout
    assert "Accept: all 2 checks are green" in done.stdout
    assert "no rule limits the first gradient norm of bf16 on my-gpt2" in done.stdout
    assert "first gradient of te-current" not in done.stdout
    assert run("fp8parity", "judge", ".parity", cwd=project).returncode == 0
    done = run(
        "pytest",
        "suites",
        "--model-factory",
        "my_models:gpt2",
        "--recipe",
        "te-current",
        "--collect-only",
        "-q",
        cwd=project,
    )
    assert "te-current-my-gpt2-native" in done.stdout and "te-current-my-gpt2-fused" not in done.stdout
    assert "micro" not in done.stdout and "[te-current-tiny" not in done.stdout


WRONG = {
    "my_models": "--model-factory takes MODULE:FUNCTION, not 'my_models'",
    "my_modles:gpt2": "--model-factory my_modles:gpt2: no module my_modles in",
    "my_models:gpt3": "has no function gpt3",
    "my_models:GPT2": "--model-factory my_models:GPT2: GPT2() returned GPT2; return a fp8parity.workload.own.OwnModel",
    "broken:made": "--model-factory broken:made: broken needs no_such_package, which is not installed",
    "raises:made": "--model-factory raises:made: made() raised RuntimeError: no weights here",
    "taken:made": "--model-factory: tiny is the name of one of this project's models; choose another name",
}


@pytest.mark.slow
@pytest.mark.parametrize(("text", "sentence"), WRONG.items(), ids=WRONG)
def test_wrong_factory_is_wrong_usage(text, sentence, tmp_path):
    project = make(tmp_path)
    (project / "broken.py").write_text("import no_such_package\n")
    (project / "raises.py").write_text("def made():\n    raise RuntimeError('no weights here')\n")
    (project / "taken.py").write_text(
        "import dataclasses, my_models\n\n\ndef made():\n    return dataclasses.replace(my_models.gpt2(), name='tiny')\n"
    )
    done = run("pytest", "suites/convergence", "--model-factory", text, "--collect-only", cwd=project)
    assert done.returncode == 4 and sentence in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_hook_takes_an_own_model(tmp_path):
    project = make(tmp_path)
    (project / "conftest.py").write_text(
        "import my_models\n\n\ndef pytest_fp8parity_models():\n    return [my_models.gpt2()]\n"
    )
    done = run("pytest", "suites/convergence", "--model", "my-gpt2", "--collect-only", "-q", cwd=project)
    assert "test_loss_parity[te-current-my-gpt2-emulated]" in done.stdout, done.stdout
