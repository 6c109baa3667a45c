"""A user's project in a folder, for tests that run pytest in a process of its own."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from processes import Done, run

ROOT = Path(__file__).parents[1]
SHORT = "Schedule(steps=12, rows=2, length=64, lr=1e-3, warmup=3, tail=4, validation_every=6, validation_rows=4)"
"""The schedule for tests of commands."""
EXAMPLE = re.sub(r"Schedule\(\s*steps[^)]*\)", SHORT, (ROOT / "docs/examples/my_conftest.py").read_text())
CONVERGENCE = ("suites/convergence", "--model", "nano")


IGNORED = ".parity/\nout.*\n__pycache__/\n.pytest_cache/\n"
PLUGIN = " -p fp8parity.gate.plugin"
"""The option of a project without a conftest.py of ours."""


def make(folder: Path) -> Path:
    """The example's conftest.py, our suites, a loose policy, a git commit."""
    (folder / "conftest.py").write_text(EXAMPLE)
    policy = (
        '[[loss]]\nmargin = 0.1\nseeds = [2, 3]\nmin_loss_drop = 0\nwhy = "twelve steps of one layer"\n'
        '[[golden]]\nleast_seeds = 3\nwhy = "twelve steps of one layer"\n'
    )
    return complete(folder, policy, plugin="")


def complete(folder: Path, policy: str = "", *, plugin: str = PLUGIN, ignored: str = IGNORED) -> Path:
    """Add settings of pytest, our suites, a policy of its own and a git commit to a user's files."""
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = --import-mode=importlib{plugin}\n")
    (folder / "suites").symlink_to(ROOT / "suites")
    if policy:
        (folder / "golden").mkdir()
        (folder / "golden" / "policy.toml").write_text(policy)
    (folder / ".gitignore").write_text(ignored)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    """Commit everything. A session in a clean tree may take over records of another one."""
    for command in ("add -A", "-c user.name=t -c user.email=t@t commit -qm x --allow-empty"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)


def start(project: Path, *args: str, **extra: str) -> Done:
    """Run suites/convergence on the example's model, or what the arguments say."""
    return run("pytest", *CONVERGENCE, *args, cwd=project, **extra)


def record_golden(project: Path) -> None:
    done = start(project, "--golden-update")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "golden: nano on topics: new, " in done.stdout
