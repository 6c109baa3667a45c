"""``fp8parity demo``: the first thing that a new user runs."""

from __future__ import annotations

import pytest
from fp8parity.cli import demo
from fp8parity.recipes import RECIPES
from processes import NIGHTLY, run


@pytest.mark.slow
@NIGHTLY
def test_demo_accepts_the_sound_recipe_and_refuses_the_fault(tmp_path):
    """Two minutes of processor time. The job `wheel` of .github/workflows/ci.yml runs it on every push."""
    done = run("fp8parity", "demo", cwd=tmp_path, COLUMNS="120")
    assert done.returncode == 0, done.stdout + done.stderr
    words = [line.split() for line in done.stdout.splitlines()]
    status = {line[-5]: line[0] for line in words if line and line[0] in ("pass", "fail")}
    assert status == {"bf16": "pass", demo.RECIPE: "pass", demo.FAULTY: "fail"}
    assert "the recipe changed, not the framework" in " ".join(done.stdout.split())
    assert demo.FAULTY in (tmp_path / "fp8parity-demo.html").read_text()
    assert demo.FAULTY not in RECIPES
