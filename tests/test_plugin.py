"""The way of a gate: golden, recipes under xdist, reports, resume, and a session that is killed."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import projects
import pytest
from fp8parity import cli
from fp8parity.judging import references
from fp8parity.records import manifest
from narrowed import load_trajectory
from processes import FIXTURES, TIMEOUT, Done, environment, run, started
from projects import CONVERGENCE, commit, record_golden, start

pytestmark = pytest.mark.slow

CODE = "import sys; from fp8parity.cli import main; code = main(['judge', '.parity']); assert 'torch' not in sys.modules; sys.exit(code)"


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


def test_gate_from_golden_to_report(project, tmp_path_factory):
    """Golden, two recipes (one of the plugin's) under xdist, table, reports, resume, judging without torch, damaged goldens."""
    stored = references.load(project / "golden").loss["nano", "topics"]
    assert [s.seed for s in stored.seeds] == [0, 1, 2]
    assert stored.gradients
    arguments = ("--recipe", "my-rowwise", "--recipe", "te-delayed", "--recipe", "bf16")
    done = start(project, *arguments, "-n", "2", "--parity-report", "out.md", "--parity-report", "out.json")
    assert done.returncode == 0, done.stdout
    assert re.search(r"pass +[+-]\d\.\d{3}% \[.*\] +my-rowwise +nano +emulated +10.00% +2", done.stdout)
    assert "Accept: all 3 checks are green" in (project / "out.md").read_text()
    rows = json.loads((project / "out.json").read_text())["rows"]
    assert {r["recipe"] for r in rows} == {"bf16", "my-rowwise", "te-delayed"}

    [made] = manifest.load([project / ".parity"])
    assert made.workers == 2 and {s.worker for s in made.selected if s.outcome == "passed"} == {"gw0", "gw1"}

    # Two workers share a control: it was trained once.
    before = {p: p.stat().st_mtime_ns for p in (project / ".parity").glob("*-seed*.json")}
    assert len(before) == 6
    again = start(project, *arguments, "--parity-resume")
    assert again.returncode == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before

    variables = environment(tmp_path_factory.mktemp("bin"))
    judged = subprocess.run([sys.executable, "-c", CODE], cwd=project, env=variables, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stderr
    assert "my-rowwise" in judged.stdout

    # An edited golden is refused by name.
    path = project / "golden" / "loss" / "nano-topics.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 7'))
    broken = start(project, "--recipe", "bf16", "--parity-resume")
    assert broken.returncode == 4
    assert "nano-topics.json" in broken.stderr and "checksum" in broken.stderr


def test_killed_session_keeps_its_records_and_is_incomplete(project, capsys):
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


BROKEN = """
from fp8parity.numerics import scaling

sound = scaling.SCALE_RULES["te-fp32"]
scaling.SCALE_RULES["te-fp32"] = lambda amax, fmt: 2 * sound(amax, fmt)  # saturates what was largest
"""


class Sides(NamedTuple):
    """The folder of both record sets, and how the runs ended."""

    folder: Path
    old: Done
    new: Done


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> Sides:
    folder = tmp_path_factory.mktemp("upgrade")
    (folder / "broken_release.py").write_text(BROKEN)
    cells = ("suites/numerics", "-k", "gemm", "--recipe", "te-current", "--recipe", "te-block", "--recipe", "bf16")

    def record(name: str, *arguments: str) -> Done:
        terms = ("--execution", "auto", "-m", "cpu", "--parity-records", str(folder / name))
        # The plugin changes the library, so it needs a process of its own.
        with started("pytest", *cells, *terms, *arguments, path=(FIXTURES, str(folder))) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return Done(process.returncode, out, err, seconds=0.0)

    report = ("--parity-report", str(folder / "report.md"))
    return Sides(folder, record("old"), record("new", "-p", "broken_release", *report))


def test_broken_release_is_refused_and_named(sides):
    assert (sides.old.returncode, sides.new.returncode) == (0, 1), sides.new.stdout
    first = (sides.folder / "report.md").read_text().split("\n\n")[1]
    assert first.startswith("**Refuse: te-current emulated on tiny fails (gemm:"), first


def test_comparison_names_the_recipe_and_not_the_framework(sides):
    old, new, report = (str(sides.folder / name) for name in ("old", "new", "compare.json"))
    done = run("fp8parity", "compare", old, new, "--report", report)
    assert done.returncode == 1, done.stdout
    first = done.stdout.splitlines()[0]
    assert "te-current-tiny-emulated gemm" in first and "ramework" not in first and "te-block" not in first
    changes = json.loads(Path(report).read_text())["changes"]
    effects = {c["cell"]["recipe"]: c["effect"] for c in changes}
    assert effects == {"te-current": "regression", "te-block": "none", "bf16": "none"}
