"""What a gate says of its outcome: the sentence, the table, reports, JUnit, annotations and exit status agree, and no part that was not judged is green."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from functools import partial

import gates
import processes
import pytest
from fp8parity.records import manifest
from gates import properties

pytestmark = pytest.mark.slow

ACTIONS = {"GITHUB_ACTIONS": "true"}
FIXTURE = """
import pytest

@pytest.fixture(autouse=True)
def device(request):
    if "te-block" in request.node.name and {when!r} == "setup":
        raise RuntimeError("no device")
    yield
    if "te-block" in request.node.name and {when!r} == "teardown":
        raise RuntimeError("no device")
"""
SILENT = """
def pytest_runtest_protocol(item):
    return True if "te-block" in item.name else None
"""
CHOSEN = """
from fp8parity.gate import workers

PATCH.setattr(workers, "_gpus", lambda config: 1)
PATCH.setattr(workers, "cores", lambda: 8)
PATCH.setattr(manifest, "workers_for", lambda works, gpus, cores, memory: 2 if len(works) == 4 else 1)
"""
REMOVED = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    result = yield
    for path in session.config.rootpath.glob(".parity/*seed*.json"):
        path.unlink()
    return result
"""
IN_QUEUE = """
CONFIG = []

def pytest_configure(config):
    CONFIG.append(config)

def pytest_runtest_logfinish(nodeid):
    if (session := CONFIG[0].pluginmanager.getplugin("dsession")) and "te-block" in nodeid:
        def interrupted(timeout):
            session.queue.mutex.release()
            raise KeyboardInterrupt

        session.queue.not_empty.wait = interrupted
"""
XFAIL = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xfail)
"""
WASXFAIL = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.outcome, report.wasxfail = "skipped", "reason: it is expected"
    return report
"""
OWN = """
import pytest

def test_own():
    assert 1 == 2

@pytest.mark.xfail
def test_expected():
    assert 1 == 2
"""
KNOWN = """
[[known]]
recipe = "te-block"
model = "tiny"
check = "loss parity"
status = "fail"
says = "50% off"
link = "https://example.org/issues/7"
expires = 2999-01-01
why = "the scale is applied twice"
"""


@pytest.fixture
def gate(tmp_path):
    """The emulated cells of three recipes: the others would be skipped here."""
    return partial(gates.of(tmp_path), "-k", "not native and not fused")


@pytest.mark.parametrize(
    ("arguments", "given", "code", "counts", "says"),
    [
        (
            ("-n", "1"), {"te_block": "die"}, 1, "3 selected tests: 2 judged, 0 skipped, 1 crashed (first test_loss_parity[te-block",
            "Refuse: te-block emulated on tiny could not be checked (suites/convergence/test_loss_parity: the process that ran the test died: worker 'gw",
        ),
        (
            (), {"more": FIXTURE.format(when="setup")}, 1, "3 selected tests: 2 judged, 0 skipped, 1 crashed",
            "(suites/convergence/test_loss_parity: a fixture failed before the test: RuntimeError: no device)",
        ),
        (
            (), {"te_block": "interrupt"}, 2, "3 selected tests: 1 judged, 0 skipped, 0 crashed, 2 missing (first test_loss_parity[te-b",
            "; the user interrupted the run.",
        ),
        (("-n", "1"), {"more": IN_QUEUE}, 2, "3 selected tests: ", "; the user interrupted the run."),
        (("-x",), {"te_mxfp8": "fail"}, 1, "3 selected tests: 1 judged, 0 skipped, 0 crashed, 2 missing", "; stopping after 1 failures"),
        ((), {"more": SILENT}, 1, "3 selected tests: 2 judged, 0 skipped, 0 crashed, 1 missing (first test_loss_parity[te-block", "but 3"),
    ],
    ids=["worker died", "setup", "interrupt", "in the queue", "-x", "silent"],
)  # fmt: skip
def test_tests_without_a_verdict_refuse_the_gate(gate, tmp_path, arguments, given, code, counts, says):
    done = gate(*arguments, "--parity-report", "out.json", environment=ACTIONS, **given)
    assert done.returncode == code, done.stdout
    assert "Accept" not in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert counts in report["sentence"] and says in report["sentence"] and report["sentence"] in done.stdout
    assert not report["green"]
    assert any(counts in line for line in done.stdout.splitlines() if line.startswith("::error title=fp8-parity::"))


@pytest.mark.parametrize(
    ("given", "says", "records"),
    [
        ({"more": FIXTURE.format(when="teardown")}, "a fixture failed after the test: RuntimeError: no device", True),
        ({"te_block": "crash"}, "ModuleNotFoundError: No module named 'gone'", False),
    ],
    ids=["teardown", "call"],
)
def test_crash_is_in_table_junit_annotations_and_manifest(gate, tmp_path, given, says, records):
    """The other cells must not make the table green."""
    done = gate("--junitxml", "out.xml", environment=ACTIONS, **given)
    assert done.returncode == 1 and "Accept" not in done.stdout
    assert len(re.findall(r"(?m)^error .*te-block +tiny +emulated", done.stdout)) == 1
    case = properties(tmp_path / "out.xml")["test_loss_parity[te-block-tiny-emulated]"]
    assert (case["cell"], case["status"]) == ("te-block-tiny-emulated", "error")
    assert case["headline"].endswith(says)
    assert any(line.startswith("::error title=te-block-tiny-emulated%3A ") for line in done.stdout.splitlines())
    [made] = manifest.load([tmp_path / ".parity"])
    [crashed] = [s for s in made.selected if s.cell == "te-block-tiny-emulated"]
    assert (bool(crashed.records), crashed.outcome, crashed.checks) == (records, "failed", ["loss parity"])


def test_uncollected_file_refuses_the_gate(gate, tmp_path):
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    done = gate("test_broken.py")
    assert done.returncode == 2
    assert "Refuse: 3 selected tests: 0 judged, 0 skipped, 0 crashed, 3 missing" in done.stdout
    assert "1 file could not be collected (first test_broken.py: ModuleNotFoundError: No module named" in done.stdout
    going = gate("test_broken.py", "--continue-on-collection-errors")
    assert going.returncode == 1
    assert "Refuse: all 4 checks that ran are green, but 3 selected tests: 3 judged" in going.stdout


def test_failing_test_without_a_cell_refuses_and_xfail_stays_one(gate, tmp_path):
    (tmp_path / "test_own.py").write_text(OWN)
    done = gate("test_own.py", "--assert=rewrite")
    assert done.returncode == 1 and "1 xfailed" in done.stdout
    assert ", 0 skipped, 1 crashed (first test_own: assert 1 == 2)" in done.stdout
    assert "Accept" not in done.stdout


def test_session_without_cells_has_no_sentence(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("fp8parity.gate.plugin",)\n')
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert 1 == 2\n")
    done = processes.run("pytest", cwd=tmp_path)
    assert done.returncode == 1
    assert "Refuse" not in done.stdout


def test_complete_session_is_accepted_in_the_order_of_the_catalogue(gate, tmp_path):
    """Whatever order tests end in: here the reverse. Native kernels cannot run here, and the user asked for the emulation."""
    done = gate("--junitxml", "out.xml")
    assert done.returncode == 0, done.stdout
    assert "Accept: all 4 checks are green.\n" in done.stdout, "the control counts, without a test of its own"
    assert re.findall(r"(?m)^pass .* (te-\S+) +tiny +emulated", done.stdout) == ["te-current", "te-block", "te-mxfp8"]
    assert set(properties(tmp_path / "out.xml")) >= {f"test_loss_parity[{r}-tiny-emulated]" for r in gates.RECIPES}


def test_workers_are_chosen_after_collection(gate, tmp_path):
    """Planted: a GPU, eight cores, and a plan that wants two workers for the three tests of the user's choice."""
    done = gate("-v", more=CHOSEN)
    assert done.returncode == 0, done.stdout
    assert "created: 2/2 workers" in done.stdout and "3 tests to run" in done.stdout
    [made] = manifest.load([tmp_path / ".parity"])
    assert (made.workers, made.cores) == (2, 8)
    broken = tmp_path / "test_broken.py"
    broken.write_text("import nothing_of_this_name\n")
    done = gate("test_broken.py", more=CHOSEN)
    assert done.returncode == 1, done.stdout
    assert "0 missing; 1 file could not be collected (first test_broken.py: Module" in done.stdout


@pytest.mark.parametrize("more", [(), ("-n", "1")], ids=str)
def test_report_needs_no_record_on_disk(gate, tmp_path, more):
    """Records come with their tests, from a worker as JSON. Planted: another process removes the files."""
    gone = (tmp_path / "kept.json", tmp_path / "gone.json")
    for path, code in zip(gone, ("", REMOVED), strict=True):
        done = gate(*more, "--parity-report", str(path), more=code, te_block="fail")
        assert done.returncode == 1 and "lacks its plots" not in done.stdout, done.stdout
        assert bool(list(tmp_path.glob(".parity/*seed*.json"))) == (not code)
    kept, other = (json.loads(path.read_text()) for path in gone)
    titles = [[section["title"] for section in report["sections"]] for report in (kept, other)]
    assert kept["rows"] == other["rows"] and titles[0] == titles[1]
    assert {"Loss trajectories", "Provenance"} <= set(titles[1])


@pytest.mark.parametrize(("more", "how"), [(XFAIL, "fail"), (WASXFAIL, "crash")], ids=["marker", "report"])
def test_red_test_marked_as_xfail_is_a_failure(gate, tmp_path, how, more):
    """The sentence says "Refuse", and pytest, JUnit, the manifest and the exit status count a failure."""
    done = gate("--junitxml", "out.xml", more=more, te_block=how)
    assert done.returncode == 1
    assert "Refuse: te-block emulated on tiny" in done.stdout and "1 failed" in done.stdout
    assert "xfailed" not in done.stdout
    [counts] = ElementTree.parse(tmp_path / "out.xml").getroot().iter("testsuite")
    assert (counts.attrib["failures"], counts.attrib["skipped"]) == ("1", "0")
    [made] = manifest.load([tmp_path / ".parity"])
    assert [s.cell for s in made.selected if s.outcome == "failed"] == ["te-block-tiny-emulated"]


def test_failure_and_known_failure_in_table_and_junit(gate, tmp_path):
    """Through the workers of xdist: test_annotations looks at one process."""
    done = gate("--junitxml", "out.xml", "-n", "2", known=KNOWN, te_current="fail", te_block="fail")
    assert done.returncode == 1, done.stdout
    assert "Refuse: te-current emulated on tiny fails (gap +0.81% [+0.66%, +0.97%], margin 0.50%)" in done.stdout
    table = re.findall(r"(?m)^(\w+) +\+0.81% \[\+0.66%, \+0.97%\] +(te-\S+) +tiny +emulated ", done.stdout)
    assert sorted(table) == [("fail", "te-current"), ("known", "te-block"), ("pass", "te-mxfp8")]
    assert "1 failed, 1 passed, " in done.stdout and "1 xfailed" in done.stdout
    cases = properties(tmp_path / "out.xml")
    assert cases["test_loss_parity[te-current-tiny-emulated]"] == {
        "cell": "te-current-tiny-emulated", "check": "loss parity", "status": "fail", "headline": "50% off: a, b",
        "margin": "0.005", "gap": "0.0081", "low": "0.0066", "high": "0.0097", "seeds": "3",
    }  # fmt: skip
    others = [cases[f"test_loss_parity[{r}-tiny-emulated]"]["status"] for r in ("te-block", "te-mxfp8")]
    assert others == ["known", "pass"]


def test_annotations_and_summary_in_github_actions(gate, tmp_path):
    summary = tmp_path / "summary.md"
    summary.write_text("# another step\n")
    done = gate(te_current="fail", te_block="drift", environment=ACTIONS | {"GITHUB_STEP_SUMMARY": str(summary)})
    lines = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    behind = "%0A  environment  NVTE_X=1 2: Transformer Engine may do something else than the recipe's name says"
    assert lines == [
        f"::error title={cell}%3A loss parity {status}::{cell}: loss parity {status}: 50%25 off: a, b{behind}"
        for cell, status in (("te-current-tiny-emulated", "fail"), ("te-block-tiny-emulated", "drift"))
    ]
    text = summary.read_text()
    assert text.startswith("# another step") and "# FP8 parity report" in text and "te-block" in text


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        (KNOWN, "pass", "te-block-tiny-emulated loss parity is green now; remove the entry or narrow it"),
        (KNOWN, "inconclusive", "Refuse: te-block emulated on tiny is inconclusive"),
    ],
)
def test_known_failure_that_is_none_is_red(gate, known, status, words):
    done = gate(known=known, te_block=status)
    assert done.returncode == 1
    assert words in done.stdout


UNMASKED = """
import torch.nn.functional as F

attention = F.scaled_dot_product_attention
F.scaled_dot_product_attention = lambda *args, is_causal=False, **more: attention(*args, **more)
"""


def test_mask_lost_in_bf16_too_blames_the_framework(tmp_path):
    """In a process of its own: some checks keep what they trained."""
    (tmp_path / "unmasked.py").write_text(UNMASKED)
    chosen = ("-k", "canary", "--recipe", "ao-tensorwise", "--parity-records", str(tmp_path / "records"))
    path, words = (processes.FIXTURES, str(tmp_path)), ("suites/numerics", "-p", "unmasked", *chosen, "--tb=no")
    with processes.started("pytest", *words, path=path) as process:
        out, _ = process.communicate(timeout=processes.TIMEOUT)
    [said] = re.findall(r"^Refuse: .*", out, re.M)
    blamed = r"Refuse: bf16 on tiny fails \(canary: .*layers\.0\.attention.*look at the framework, not at a recipe"
    assert process.returncode == 1 and re.match(blamed, said)
