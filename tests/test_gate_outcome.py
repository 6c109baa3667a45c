"""What a gate says when part of it was not judged: the sentence, the table, the reports, JUnit and annotations agree, and none is green."""

from __future__ import annotations

import json
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


@pytest.fixture
def gate(tmp_path):
    """The emulated cells of three recipes: the others would be skipped here."""
    return partial(gates.of(tmp_path), "-k", "emulated or own")


@pytest.mark.parametrize(
    ("arguments", "given", "code", "counts", "says"),
    [
        (
            ("-n", "1"), {"te_block": "die"}, 1, "3 selected tests: 2 judged, 0 skipped, 1 crashed (first test_loss_parity[te-block",
            "Refuse: te-block emulated on tiny could not be checked (test_loss_parity: the process that ran the test died: worker 'gw",
        ),
        (
            ("-n", "1", "--max-worker-restart", "0"), {"te_block": "die"}, 1, "3 selected tests: 0 judged, 0 skipped, 1 crashed",
            "2 missing (first test_loss_parity[te-",
        ),
        (
            (), {"more": FIXTURE.format(when="setup")}, 1, "3 selected tests: 2 judged, 0 skipped, 1 crashed",
            "(test_loss_parity: a fixture failed before the test: RuntimeError: no device)",
        ),
        (
            (), {"more": FIXTURE.format(when="teardown")}, 1, "3 selected tests: 2 judged, 0 skipped, 1 crashed",
            "(test_loss_parity: a fixture failed after the test: RuntimeError: no device)",
        ),
        (
            (), {"te_block": "interrupt"}, 2, "3 selected tests: 1 judged, 0 skipped, 0 crashed, 2 missing (first test_loss_parity[te-b",
            "Refuse: the only check that ran is green, but 3 selected tests: ",
        ),
        (("-x",), {"te_mxfp8": "fail"}, 1, "3 selected tests: 1 judged, 0 skipped, 0 crashed, 2 missing", "; stopping after 1 failures"),
        ((), {"more": SILENT}, 1, "3 selected tests: 2 judged, 0 skipped, 0 crashed, 1 missing (first test_loss_parity[te-block", "but 3"),
    ],
    ids=["worker died", "worker not replaced", "setup", "teardown", "interrupt", "-x", "silent"],
)  # fmt: skip
def test_tests_without_a_verdict_refuse_the_gate(gate, tmp_path, arguments, given, code, counts, says):
    done = gate(*arguments, "--parity-report", "out.json", environment=ACTIONS, **given)
    assert done.returncode == code, done.stdout
    assert "Accept" not in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    assert counts in report["sentence"]
    assert says in report["sentence"]
    assert report["sentence"] in done.stdout
    assert not report["green"]
    assert any(counts in line for line in done.stdout.splitlines() if line.startswith("::error title=fp8-parity::"))


def test_interrupt_of_the_user_is_named(gate):
    assert (
        "1 missing (first test_loss_parity[te-current-tiny-emulated]); the user interrupted the run."
        in gate(te_current="interrupt").stdout
    )


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_crash_has_row_property_and_annotation(gate, tmp_path, when):
    done = gate("--junitxml", "out.xml", environment=ACTIONS, more=FIXTURE.format(when=when))
    [row] = [line for line in done.stdout.splitlines() if " te-block " in line and line.startswith("error")]
    assert row.split()[0] == "error"
    case = properties(tmp_path / "out.xml")["test_loss_parity[te-block-tiny-emulated]"]
    assert (case["cell"], case["status"]) == ("te-block-tiny-emulated", "error")
    assert case["headline"].endswith("RuntimeError: no device")
    assert any(line.startswith("::error title=te-block-tiny-emulated%3A ") for line in done.stdout.splitlines())


def test_uncollected_file_refuses_the_gate(gate, tmp_path):
    (tmp_path / "test_broken.py").write_text("import nothing_of_this_name\n")
    done = gate("test_broken.py")
    assert done.returncode == 2
    assert "Refuse: 3 selected tests: 0 judged, 0 skipped, 0 crashed, 3 missing" in done.stdout
    assert (
        "1 file could not be collected (first test_broken.py: ModuleNotFoundError: No module named 'nothing_of_this_name')"
        in done.stdout
    )
    going = gate("test_broken.py", "--continue-on-collection-errors")
    assert going.returncode == 1
    assert "Refuse: all 3 checks that ran are green, but 3 selected tests: 3 judged" in going.stdout


def test_failing_test_without_a_cell_refuses(gate, tmp_path):
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert 1 == 2\n")
    done = gate("test_own.py", "--assert=rewrite")
    assert done.returncode == 1
    assert "4 selected tests: 3 judged, 0 skipped, 1 crashed (first test_own: assert 1 == 2)" in done.stdout
    assert "Accept" not in done.stdout


def test_session_without_cells_has_no_sentence(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("fp8parity.gate.plugin",)\n')
    (tmp_path / "test_own.py").write_text("def test_own():\n    assert 1 == 2\n")
    done = processes.run("pytest", cwd=tmp_path)
    assert done.returncode == 1
    assert "Refuse" not in done.stdout


def test_complete_session_is_accepted(gate, tmp_path):
    done = gate("--junitxml", "out.xml")
    assert done.returncode == 0, done.stdout
    assert "Accept: all 3 checks are green." in done.stdout
    assert set(properties(tmp_path / "out.xml")) >= {
        f"test_loss_parity[{name}-tiny-emulated]" for name in gates.RECIPES
    }


@pytest.mark.parametrize("more", [XFAIL, WASXFAIL], ids=["marker", "report"])
@pytest.mark.parametrize("how", ["fail", "crash"])
def test_red_test_marked_as_xfail_is_a_failure(gate, tmp_path, how, more):
    """The sentence says "Refuse", and pytest, JUnit, the manifest and the exit status count a failure."""
    done = gate("--junitxml", "out.xml", more=more, te_block=how)
    assert done.returncode == 1
    assert (
        "Refuse: te-block emulated on tiny" in done.stdout
        and "1 failed" in done.stdout
        and "xfailed" not in done.stdout
    )
    [counts] = ElementTree.parse(tmp_path / "out.xml").getroot().iter("testsuite")
    assert (counts.attrib["failures"], counts.attrib["skipped"]) == ("1", "0")
    [made] = manifest.load([tmp_path / ".parity"])
    assert [s.cell for s in made.selected if s.outcome == "failed"] == ["te-block-tiny-emulated"]
    assert [s.cell for s in made.selected if s.outcome == "failed" and not s.records] == ["te-block-tiny-emulated"] * (
        how == "crash"
    )


def test_xfail_of_the_user_stays_an_xfail(gate, tmp_path):
    (tmp_path / "test_own.py").write_text("import pytest\n@pytest.mark.xfail\ndef test_own():\n    assert 1 == 2\n")
    done = gate("test_own.py")
    assert done.returncode == 0 and "1 xfailed" in done.stdout


def test_manifest_names_a_crash_after_records(gate, tmp_path):
    assert gate(more=FIXTURE.format(when="teardown")).returncode == 1
    [made] = manifest.load([tmp_path / ".parity"])
    [crashed] = [s for s in made.selected if s.crashed]
    assert (crashed.cell, crashed.checks) == ("te-block-tiny-emulated", ["loss parity"])
    assert crashed.records and not crashed.whole
