"""The front: options, markers, ids, gates, resume, xdist. Sessions of a one-layer model in a process of their own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import projects
import pytest
import torch
from fp8parity import cli
from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden
from narrowed import load_trajectory
from processes import started, without_compiler
from projects import CONVERGENCE, commit, record_golden, start

ROOT = Path(__file__).parents[1]


pytestmark = pytest.mark.slow


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return projects.make(tmp_path)


def environment(folder: Path) -> dict[str, str]:
    """That of a process which a test starts itself."""
    kept = {k: v for k, v in os.environ.items() if k not in ("CI", "FP8PARITY_COMMIT") and not k.startswith("PYTEST")}
    return kept | {"PYTHONPATH": str(ROOT / "fixtures"), "COLUMNS": "160", "PATH": without_compiler(folder)}


def test_the_way_from_golden_to_report(project, tmp_path_factory):
    """Golden, two recipes (one of the plugin's) under xdist, table, reports, resume, re-judging without torch."""
    record_golden(project)
    commit(project)
    stored = store.load(project / "golden", Golden)["nano", "topics"]
    assert [s.seed for s in stored.seeds] == [0, 1, 2]
    assert stored.gradients
    shutil.rmtree(project / ".parity")
    arguments = ("--recipe", "my-rowwise", "--recipe", "te-delayed", "--recipe", "bf16")
    done = start(project, *arguments, "-n", "2", "--parity-report", "out.md", "--parity-report", "out.json")
    assert done.returncode == 0, done.stdout
    assert re.search(r"pass +[+-]\d\.\d{3}% \[.*\] +my-rowwise +nano +emulated +10.00% +2", done.stdout)
    report = (project / "out.md").read_text()
    assert "Accept: all 3 checks are green; 3 of them judged in part by rules alone" in report
    assert "no rule limits the first gradient norm of my-rowwise on nano" in report
    rows = json.loads((project / "out.json").read_text())["rows"]
    assert {r["recipe"] for r in rows} == {"bf16", "my-rowwise", "te-delayed"}

    # Two workers share a control: it was trained once, and the records say so.
    before = {p: p.stat().st_mtime_ns for p in (project / ".parity").glob("*-seed*.json")}
    assert len(before) == 6
    delayed = load_trajectory(project / ".parity" / "te-delayed-nano-emulated-topics-seed0.json")
    assert "history 16" in delayed.inventory[0].config
    again = start(project, *arguments, "--parity-resume")
    assert again.returncode == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    fresh = start(project, *arguments)
    assert fresh.returncode == 0
    assert all(p.stat().st_mtime_ns > t for p, t in before.items())
    assert load_trajectory(project / ".parity" / "te-delayed-nano-emulated-topics-seed0.json").loss == delayed.loss

    code = "import sys; from fp8parity.cli import main; code = main(['judge', '.parity']); assert 'torch' not in sys.modules; sys.exit(code)"
    judged = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=environment(tmp_path_factory.mktemp("bin")),
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stderr
    assert "my-rowwise" in judged.stdout

    # A tampered and a truncated golden are refused by name.
    path = project / "golden" / "loss" / "nano-topics.json"
    whole = path.read_text()
    path.write_text(whole.replace('"seed": 1', '"seed": 7'))
    broken = start(project, "--recipe", "bf16", "--parity-resume")
    assert broken.returncode == 4
    assert "its checksum does not match its content" in broken.stderr
    path.write_text(whole[: len(whole) // 2])
    assert re.search(
        r"nano-topics.json:\d+: not valid JSON", start(project, "--recipe", "bf16", "--parity-resume").stderr
    )


def test_another_corpus(project):
    done = start(project, "--golden-update", "--corpus", "counting:20000")
    assert done.returncode == 0, done.stdout
    assert (project / "golden" / "loss" / "nano-counting_20000.json").exists()


def test_a_killed_run_keeps_its_finished_cells_and_is_not_whole(project, capsys):
    record_golden(project)
    commit(project)
    shutil.rmtree(project / ".parity")
    with started("pytest", *CONVERGENCE, "--recipe", "te-current", "--seeds", "3", cwd=project) as process:
        deadline = time.time() + 120
        while time.time() < deadline and not list((project / ".parity").glob("te-current*.json")):
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    kept = list((project / ".parity").glob("*seed*.json"))
    assert kept
    for path in kept:
        load_trajectory(path)  # whole, with its checksum
    # Its records alone would be green: nothing else says that there was more to run.
    assert cli.main(["judge", str(project / ".parity"), "--golden-dir", str(project / "golden")]) == 1
    told = capsys.readouterr().out
    assert "selected te-current-nano-emulated test_loss_parity (it was not run)" in told
    assert "ended early: killed, or still running" in told
    times = {p: p.stat().st_mtime_ns for p in kept}
    done = start(project, "--recipe", "te-current", "--seeds", "3", "--parity-resume")
    assert done.returncode == 0, done.stdout
    assert {p: p.stat().st_mtime_ns for p in kept} == times


def test_a_required_cell_may_be_collected_alone(project):
    done = start(project, "--require", "te-current-nano-native", "--recipe", "te-current", "--collect-only")
    assert "te-current-nano-native" in done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("recipe", "checks", "code", "words"),
    [
        (
            "te-current",
            ("test_numerics.py::test_codes", "test_numerics.py::test_defaults"),
            1,
            "required cell te-current-emulated ran without test_defaults: needs the package transformer_engine",
        ),
        ("te-current", ("test_numerics.py::test_codes",), 0, "1 passed"),
        # accumulation has nothing to say of FP4, anywhere
        ("te-nvfp4", ("test_numerics.py::test_codes", "test_device.py::test_accumulation"), 0, "1 passed, 3 skipped"),
    ],
    ids=["lacks a package", "one check", "not applicable"],
)
def test_a_check_that_a_required_cell_ran_without_is_red(project, recipe, checks, code, words):
    named = [f"suites/numerics/{check}" for check in checks]
    options = (
        "-k",
        "not loss_parity",
        "--recipe",
        recipe,
        "--execution",
        "emulated",
        "--golden-dir",
        str(ROOT / "golden"),
    )
    arguments = (*named, *options)
    done = start(project, *arguments, "--require", f"{recipe}-emulated")
    assert words in done.stdout
    assert done.returncode == code, done.stdout
    assert start(project, *arguments).returncode == 0  # nothing is required: a skip is a skip


def test_header_and_ids(project):
    done = start(project, "--collect-only", "-q", "--recipe", "te-current")
    assert "te-current-nano-native" in done.stdout
    assert "te-current-nano-emulated" in done.stdout
    header = start(project, "--collect-only", "--recipe", "bf16").stdout
    assert "fp8-parity: " in header
    assert "runs here: bf16" in header


def test_a_verdict_is_not_buried_under_traces_of_the_compiler(caplog):
    torch.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(3))
    assert sum(record.name == "torch.__trace" for record in caplog.records) <= 1
