"""What a CI reads of a gate: exit status, JUnit XML, annotations, step summary; with known failures and crashes planted."""

from __future__ import annotations

import re

import gates
import pytest
from gates import properties

pytestmark = pytest.mark.slow


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
    return gates.of(tmp_path)


def test_the_table_has_the_order_of_the_catalogue(gate):
    """Whatever order tests end in: here the reverse."""
    rows = re.findall(r"^pass .* (te-\S+) +tiny +emulated", gate().stdout, re.MULTILINE)
    assert rows == ["te-current", "te-block", "te-mxfp8"]


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_junit_has_flat_properties(gate, tmp_path, workers):
    done = gate("--junitxml", "out.xml", *workers, te_current="fail")
    assert done.returncode == 1, done.stdout
    assert "Refuse: te-current emulated on tiny fails (gap +0.81% [+0.66%, +0.97%], margin 0.50%)." in done.stdout
    table = re.findall(r"(?m)^(\w+) +\+0.81% \[\+0.66%, \+0.97%\] +(te-\S+) +tiny +emulated ", done.stdout)
    assert sorted(table) == [("fail", "te-current"), ("pass", "te-block"), ("pass", "te-mxfp8")]
    cases = properties(tmp_path / "out.xml")
    assert cases["test_loss_parity[te-current-tiny-emulated]"] == {
        "cell": "te-current-tiny-emulated", "check": "loss parity", "status": "fail", "headline": "50% off: a, b",
        "margin": "0.005", "gap": "0.0081", "low": "0.0066", "high": "0.0097", "seeds": "3",
    }  # fmt: skip
    assert cases["test_loss_parity[te-mxfp8-tiny-emulated]"]["status"] == "pass"


def test_annotations_and_summary_in_github_actions_alone(gate, tmp_path):
    summary = tmp_path / "summary.md"
    done = gate(
        te_current="fail", te_block="drift", environment={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    behind = "%0A  environment  NVTE_X=1 2: Transformer Engine may do something else than the recipe's name says"
    assert lines == [
        "::error title=te-current-tiny-emulated%3A loss parity fail::te-current-tiny-emulated: loss parity fail: 50%25 off: a, b"
        + behind,
        "::error title=te-block-tiny-emulated%3A loss parity drift::te-block-tiny-emulated: loss parity drift: 50%25 off: a, b"
        + behind,
    ]
    assert summary.read_text().startswith("# FP8 parity report")
    assert "te-block" in summary.read_text()
    gate(environment={"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)})
    assert summary.read_text().count("# FP8 parity report") == 2


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_a_known_failure_is_green_and_in_sight(gate, tmp_path, workers):
    done = gate("--junitxml", "out.xml", *workers, known=KNOWN, te_block="fail")
    assert done.returncode == 0, done.stdout
    assert re.search(r"(?m)^known .* te-block +tiny +emulated", done.stdout)
    assert "2 passed, " in done.stdout
    assert "1 xfailed" in done.stdout
    assert properties(tmp_path / "out.xml")["test_loss_parity[te-block-tiny-emulated]"]["status"] == "known"


@pytest.mark.parametrize(
    ("known", "status", "words"),
    [
        (KNOWN, "pass", "te-block-tiny-emulated loss parity is green now; remove the entry or narrow it"),
        (KNOWN, "inconclusive", "Refuse: te-block emulated on tiny is inconclusive"),
        (KNOWN.replace("2999", "2001"), "fail", "expired on 2001-01-01"),
        (
            KNOWN.replace("te-block", "te-blok"),
            "pass",
            "recipe te-blok; model tiny selects no cell of the whole matrix",
        ),
        (
            KNOWN.replace("loss parity", "los parity"),
            "pass",
            "there is no check 'los parity'; known: loss parity, throughput, ",
        ),
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


def test_a_crash_is_in_the_table_too(gate):
    """Planted: a package without the module that a recipe needs. The other cells must not make the table green."""
    done = gate("--parity-report", "out.md", te_block="crash")
    assert done.returncode == 1
    assert re.search(r"(?m)^error .*te-block +tiny +emulated", done.stdout)
    assert "All " not in done.stdout
    assert "ModuleNotFoundError: No module named 'gone'" in done.stdout
