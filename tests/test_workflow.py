"""The example workflow is valid and asks for no more rights than it needs; tests/test_docs.py tries its commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
WORKFLOW = ROOT / ".github" / "workflows" / "parity.yml"
JOBS = yaml.safe_load(WORKFLOW.read_text())["jobs"]
STEPS = [(job, step) for job, body in JOBS.items() for step in body["steps"]]


def lint(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def test_workflow_is_valid(tmp_path):
    assert lint(WORKFLOW).returncode == 0, lint(WORKFLOW).stdout
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(WORKFLOW.read_text().replace("runs-on: ubuntu-latest", "run-on: ubuntu-latest"))
    assert lint(wrong).returncode == 1


def test_workflow_takes_no_rights_and_pins_its_actions():
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (.*)", WORKFLOW.read_text())
    assert len(used) == sum("uses" in step for _, step in STEPS) > 0
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), (
            f"{action} is not pinned to a digest with its version"
        )
    for job, step in STEPS:
        assert ("uses" in step) != ("run" in step), job


def test_pipes_keep_exit_statuses():
    """GitHub starts "bash" with -o pipefail, and its default shell without it."""
    assert yaml.safe_load(WORKFLOW.read_text())["defaults"] == {"run": {"shell": "bash"}}
    assert any("|" in step.get("run", "") for _, step in STEPS)
    assert not any("shell" in step for _, step in STEPS)


def test_jobs_need_jobs_that_there_are():
    for body in JOBS.values():
        needed = body.get("needs", [])
        assert set([needed] if isinstance(needed, str) else needed) <= set(JOBS)
        assert body["timeout-minutes"] <= 60


def test_it_compares_what_it_records():
    text = WORKFLOW.read_text()
    for job in ("cpu", "hopper"):
        assert JOBS[job]["strategy"]["matrix"]["side"] == ["old", "new"]
        assert JOBS[job]["steps"][-1]["with"]["name"] == f"{job}-${{{{ matrix.side }}}}"
    assert JOBS["compare"]["needs"] == ["cpu", "hopper"]
    assert "--parity-records .parity-sets/${{ matrix.side }}" in text
    assert "--parity-records {tox_root}/.parity-sets/old" in (ROOT / "tox.ini").read_text()
    assert "path: .parity-sets" in text and "fp8parity compare sets/old sets/new" in text
