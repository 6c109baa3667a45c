"""In pytest, a damaged golden or policy is one line and pytest's exit status for wrong usage, before anything runs."""

from __future__ import annotations

import projects
import pytest
from processes import run

pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path):
    return projects.make(tmp_path)


DAMAGED = [
    ("policy.toml", "loss = 3", "golden/policy.toml: 'loss' is not a table of rows"),
    ("policy.toml", "a = " + "[" * 5000, "golden/policy.toml: its values are nested too deeply"),
    ("loss/nano-topics.json", "{}", "golden/loss/nano-topics.json: no checksum"),
    ("numerics/sources.csv", "a,b\n", "golden/numerics/sources.csv:1: expected the columns"),
]


@pytest.mark.parametrize(
    ("name", "text", "words", "workers"), [*((*row, ()) for row in DAMAGED), (*DAMAGED[0], ("-n", "2"))]
)
def test_a_damaged_reference_is_wrong_usage(project, name, text, words, workers):
    path = project / "golden" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    done = projects.start(project, *workers)
    assert done.returncode == 4, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(errors) == 1 and errors[0].startswith("ERROR: ") and words in errors[0]
    assert "Traceback" not in done.stdout


def test_a_project_without_a_policy_may_still_use_pytest(project):
    """The plugin is loaded for other tests, too. A suite that needs the policy is red."""
    (project / "golden" / "policy.toml").unlink()
    (project / "test_own.py").write_text("def test_own():\n    pass\n")
    assert run("pytest", "test_own.py", cwd=project).returncode == 0
    done = projects.start(project, "--recipe", "bf16")
    assert done.returncode == 1
    assert "policy.toml: cannot be read" in done.stdout
