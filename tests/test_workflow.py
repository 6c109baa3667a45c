"""The example workflow is valid and asks for no more rights than it needs; tests/test_docs.py tries its commands."""

from __future__ import annotations

import re
import subprocess
import sys

import yaml
from documents import ROOT

TEXT = (ROOT / ".github" / "workflows" / "parity.yml").read_text()
WORKFLOW = yaml.safe_load(TEXT)


def test_workflow_is_valid(tmp_path):
    for text, status in ((TEXT, 0), (TEXT.replace("runs-on: ubuntu-latest", "run-on: ubuntu-latest"), 1)):
        path = tmp_path / f"{status}.yml"
        path.write_text(text)
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
        assert subprocess.run(command, capture_output=True).returncode == status


def test_workflow_has_no_rights_and_pins_its_actions():
    used = re.findall(r"uses: (.*)", TEXT)
    assert WORKFLOW["permissions"] == {"contents": "read"} and used
    assert [a for a in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", a)] == []


def test_workflow_keeps_exit_statuses_of_pipes():
    """GitHub starts "bash" with -o pipefail, and its default shell without it."""
    assert WORKFLOW["defaults"] == {"run": {"shell": "bash"}}
