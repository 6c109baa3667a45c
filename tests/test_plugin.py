"""The way of a gate: golden, recipes under xdist, reports, resume, and a session that is killed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from pathlib import Path

import projects
import pytest
from fp8parity import cli
from fp8parity.judging import references
from fp8parity.records import manifest
from narrowed import load_trajectory
from processes import started
from projects import CONVERGENCE, commit, record_golden, start

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def with_golden(tmp_path_factory) -> Path:
    made = projects.make(tmp_path_factory.mktemp("project"))
    record_golden(made)
    commit(made)
    shutil.rmtree(made / ".parity")
    return made


@pytest.fixture
def project(with_golden: Path, tmp_path: Path) -> Path:
    shutil.copytree(with_golden, tmp_path, symlinks=True, dirs_exist_ok=True)
    return tmp_path


def test_gate_from_golden_to_report(project):
    """Golden, two recipes (one of the plugin's) under xdist, table and reports."""
    stored = references.load(project / "golden").loss["nano", "topics"]
    assert [s.seed for s in stored.seeds] == [0, 1, 2]
    assert stored.gradients
    arguments = ("--recipe", "my-rowwise", "--recipe", "my-delayed", "--recipe", "bf16")
    done = start(project, *arguments, "-n", "2", "--parity-report", "out.md", "--parity-report", "out.json")
    assert done.returncode == 0, done.stdout
    assert re.search(r"pass +[+-]\d\.\d{3}% \[.*\] +my-rowwise +nano +emulated +10.00% +2", done.stdout)
    assert "Accept: all 3 checks are green" in (project / "out.md").read_text()
    rows = json.loads((project / "out.json").read_text())["rows"]
    assert {r["recipe"] for r in rows} == {"bf16", "my-rowwise", "my-delayed"}

    [made] = manifest.load([project / ".parity"])
    assert made.workers == 2 and {s.worker for s in made.selected if s.outcome == "passed"} == {"gw0", "gw1"}
    assert len(list((project / ".parity").glob("*-seed*.json"))) == 6, "two workers share a control"


def test_killed_session_keeps_its_records_and_is_incomplete(project, capsys, monkeypatch):
    # `start` has none, and a record of other settings is not reused.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    options = ("--recipe", "te-current", "--seeds", "3")
    with started("pytest", *CONVERGENCE, *options, cwd=project) as process:
        deadline = time.time() + 120
        while time.time() < deadline and not list((project / ".parity").glob("te-current*.json")):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    kept = list((project / ".parity").glob("*seed*.json"))
    assert kept
    for path in kept:
        load_trajectory(path)  # complete, with its checksum
    # Its records alone would be green: only the manifest knows that there was more to run.
    assert cli.main(["judge", str(project / ".parity"), "--golden-dir", str(project / "golden")]) == 1
    out = capsys.readouterr().out
    assert "selected te-current-nano-emulated test_loss_parity (it was not run)" in out
    assert "ended early: killed, or still running" in out
    times = {p: p.stat().st_mtime_ns for p in kept}
    done = start(project, *options, "--parity-resume")
    assert done.returncode == 0, done.stdout
    assert {p: p.stat().st_mtime_ns for p in kept} == times
    judged = ("judge", str(project / ".parity"), "--golden-dir", str(project / "golden"), "--release")
    assert cli.main([*judged]) == 0, "the later session completed it"


def test_required_cell_without_one_of_its_checks_is_red(tmp_path):
    made = projects.make(tmp_path)
    checks = [f"suites/numerics/test_numerics.py::{name}" for name in ("test_codes", "test_defaults")]
    options = ("-k", "not loss_parity", "--recipe", "te-current", "--execution", "emulated")
    golden = ("--golden-dir", str(projects.ROOT / "golden"))
    done = start(made, *checks, *options, *golden, "--require", "te-current-emulated")
    words = "required cell te-current-emulated ran without test_defaults: needs the package transformer_engine"
    assert words in done.stdout
    assert done.returncode == 1, done.stdout
    assert start(made, *checks, *options, *golden).returncode == 0  # nothing is required: a skip is a skip
