"""What a CI reads: exit status, JUnit properties, annotations, step summary; with known failures and crashes planted."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judge import Gap, Verdict
from fp8parity.record import CellKey
from fp8parity.record_set import what
from fp8parity.report import ci
from fp8parity.storage import file_name, write_json

ROOT = Path(__file__).parents[1]
CONFTEST = """
from fp8parity.judge import Gap, Verdict
from fp8parity.session import Session

pytest_plugins = ("fp8parity.plugin",)
STATUS = {status}

def loss_parity(self, cell):
    status = STATUS.get(cell.recipe, "pass")
    if status == "crash":
        raise ModuleNotFoundError("No module named 'gone'")
    gap = Gap(mean=0.0081, low=0.0066, high=0.0097, n=3, text="+0.81% [+0.66%, +0.97%]")
    return Verdict(cell=self.key(cell), check="loss parity", status=status, headline="50% off: a, b", gap=gap, margin=0.005, snr=28.5)

Session.loss_parity = loss_parity

def pytest_collection_modifyitems(items):
    items.reverse()
"""
KNOWN = """
[[known]]
cell = "te-block-tiny-*"
check = "loss parity"
status = "fail"
link = "https://example.org/issues/7"
expires = 2999-01-01
why = "the scale is applied twice"
"""


@pytest.fixture
def gate(tmp_path):
    """Runs suites/convergence of three emulated recipes whose verdicts are given."""

    def run(*arguments: str, known: str = "", environment: dict[str, str] | None = None, **status: str):
        (tmp_path / "conftest.py").write_text(CONFTEST.format(status={k.replace("_", "-"): v for k, v in status.items()}))
        (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
        if not (tmp_path / "suites").exists():
            (tmp_path / "suites").symlink_to(ROOT / "suites")
        (tmp_path / "golden").mkdir(exist_ok=True)
        (tmp_path / "golden" / "tolerances.toml").write_text('[[loss]]\nmargin = 0.005\nwhy = "a made-up row"\n')
        (tmp_path / "golden" / "known_failures.toml").write_text(known)
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB")}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "suites/convergence"]
        recipes = [part for name in ("te-current", "te-block", "te-mxfp8") for part in ("--recipe", name)]
        return subprocess.run(
            [*command, *recipes, "--execution", "emulated", *arguments],
            cwd=tmp_path, env=kept | {"PYTHONPATH": str(ROOT / "fixtures"), "COLUMNS": "160"} | (environment or {}),
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    return run


def properties(path: Path) -> dict[str, dict[str, str]]:
    return {
        case.get("name"): {p.get("name"): p.get("value") for p in case.iter("property")}
        for case in ElementTree.parse(path).getroot().iter("testcase")
        if case.find("properties") is not None
    }


def test_the_table_has_the_order_of_the_catalogue(gate):
    """Whatever order tests end in: here the reverse."""
    rows = re.findall(r"^(te-\S+) +tiny +emulated", gate().stdout, re.MULTILINE)
    assert rows == ["te-current", "te-block", "te-mxfp8"]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_junit_has_flat_properties_and_the_gate_still_hears_all(gate, tmp_path, workers):
    done = gate("--junitxml", "out.xml", *workers, te_current="fail")
    assert done.returncode == 1, done.stdout
    assert "Refuse: te-current emulated on tiny fails (gap +0.81% [+0.66%, +0.97%], margin 0.50%)." in done.stdout
    table = re.findall(r"(?m)^(te-\S+) +tiny +emulated .* (\w+) *$", done.stdout)
    assert sorted(table) == [("te-block", "pass"), ("te-current", "fail"), ("te-mxfp8", "pass")]
    cases = properties(tmp_path / "out.xml")
    assert cases["test_loss_parity[te-current-tiny-emulated]"] == {
        "cell": "te-current-tiny-emulated", "check": "loss parity", "status": "fail", "headline": "50% off: a, b",
        "margin": "0.005", "snr": "28.5", "gap": "0.0081", "low": "0.0066", "high": "0.0097", "seeds": "3",
    }  # fmt: skip
    assert cases["test_loss_parity[te-mxfp8-tiny-emulated]"]["status"] == "pass"


def test_annotations_and_summary_in_github_actions_alone(gate, tmp_path):
    summary = tmp_path / "summary.md"
    quiet = gate(te_current="fail")
    assert "::error" not in quiet.stdout
    done = gate(te_current="fail", te_block="drift", environment={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    lines = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert lines == [
        "::error title=te-current-tiny-emulated%3A loss parity fail::te-current-tiny-emulated: loss parity fail: 50%25 off: a, b",
        "::error title=te-block-tiny-emulated%3A loss parity drift::te-block-tiny-emulated: loss parity drift: 50%25 off: a, b",
    ]
    assert summary.read_text().startswith("# FP8 parity report")
    assert "te-block" in summary.read_text()
    gate(environment={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().count("# FP8 parity report") == 2


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_known_failure_is_green_and_in_sight(gate, tmp_path, workers):
    done = gate("--junitxml", "out.xml", *workers, known=KNOWN, te_block="fail")
    assert done.returncode == 0, done.stdout
    assert re.search(r"te-block +tiny +emulated .* known", done.stdout)
    assert "2 passed, " in done.stdout
    assert "1 xfailed" in done.stdout
    assert properties(tmp_path / "out.xml")["test_loss_parity[te-block-tiny-emulated]"]["status"] == "known"


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        (KNOWN, "pass", "te-block-tiny-emulated loss parity is green now; remove the entry or narrow it"),
        (KNOWN, "inconclusive", "Refuse: te-block emulated on tiny is inconclusive"),
        (KNOWN.replace("2999", "2001"), "fail", "expired on 2001-01-01"),
        (KNOWN.replace("te-block", "te-blok"), "pass", "'te-blok-tiny-*' matches no cell of the whole matrix"),
        (KNOWN.replace("loss parity", "los parity"), "pass", "'los parity' matches no check; known: loss parity, throughput, codes"),
    ],
)
def test_a_known_failure_that_is_none_is_red(gate, known, status, words):
    done = gate(known=known, te_block=status)
    assert done.returncode == 1
    assert words in done.stdout


def test_a_malformed_entry_is_wrong_usage(gate):
    done = gate(known=KNOWN.replace("link", "lnk"))
    assert done.returncode == 4
    assert "known_failures.toml:2: [[known]] key link: Field required" in done.stderr


def test_an_entry_about_cells_that_did_not_run_here_says_nothing(gate):
    assert gate(known=KNOWN.replace("te-block-tiny-*", "te-block-tiny-native")).returncode == 0


def test_a_crash_is_in_the_table_too(gate):
    """Planted: a package without the module that a recipe needs. The other cells must not make the table green."""
    done = gate("--parity-report", "out.md", te_block="crash")
    assert done.returncode == 1
    assert re.search(r"te-block +tiny +emulated .* error", done.stdout)
    assert "All " not in done.stdout
    assert "ModuleNotFoundError: No module named 'gone'" in done.stdout


def verdict(status="fail", corpus="synthetic", check="gemm"):
    cell = CellKey(model="tiny", recipe="te-current", execution="native", corpus=corpus)
    return Verdict(cell=cell, check=check, status=status, headline="h")


def test_one_annotation_a_failing_cell():
    found = ci.failures([verdict(), verdict("error", check="state"), verdict("pass"), verdict("known")], ["nothing ran"])
    assert [title for title, _ in found] == ["te-current-tiny-native: gemm fail, state error", "fp8-parity"]
    assert found[0][1].count("\n") == 1


def test_workflow_commands_are_escaped():
    assert ci.error_line(("a: b, c%", "1%\r\n2: 3, 4")) == "::error title=a%3A b%2C c%25::1%25%0D%0A2: 3, 4"


def test_an_odd_first_step_is_a_property():
    odd = verdict().model_copy(update={"odd_start": "gradient norm 0.96x BF16's"})
    assert dict(ci.properties([odd]))["first step"] == "gradient norm 0.96x BF16's"
    assert "first step" not in dict(ci.properties([verdict()]))


def test_properties_of_several_corpora_are_told_apart():
    found = dict(ci.properties([verdict(), verdict("pass", corpus="text:x")]))
    assert (found["synthetic.status"], found["text:x.status"]) == ("fail", "pass")
    gap = Gap(mean=0.01, low=-float("inf"), high=float("inf"), n=1, text="t")
    assert dict(ci.properties([verdict().model_copy(update={"gap": gap})]))["low"] == "-inf"


def test_a_summary_that_is_too_long_is_cut_to_its_head(tmp_path):
    path = tmp_path / "s.md"
    environment = {"GITHUB_STEP_SUMMARY": str(path)}
    assert ci.publish([], "# T\n\nsentence\n" + "x" * ci.SUMMARY_LIMIT, environment) == []
    assert path.read_text() == "# T\n\nsentence\n\nThe whole report is too long for a summary; see the job's files.\n"


def test_compare_annotates_what_is_worse(trajectory, tmp_path, capsys, monkeypatch):
    (tmp_path / "tolerances.toml").write_text('[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "a made-up row"\n')
    for name, shift in (("old", 0.0), ("new", 0.02)):
        for r in [x for s in range(3) for x in (trajectory(seed=s), trajectory("te-current", s, shift + 1e-4 * (s + 1)))]:
            write_json(tmp_path / name / file_name(r.cell, what(r)), r)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--golden-dir", str(tmp_path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(lines) == 1
    assert lines[0].startswith("::error title=te-current-nano-emulated loss%3A recipe moved%3A regression::")
    assert "# FP8 parity: OLD and NEW" in (tmp_path / "s.md").read_text()
