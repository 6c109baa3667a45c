"""What is written for a CI, piece by piece: properties, annotations, workflow commands and the summary."""

from __future__ import annotations

import pytest
from fp8parity.cli import main
from fp8parity.judging.verdict import Gap, LossDetail, NumericsDetail, Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import ci


def verdict(status="fail", corpus="topics", check="gemm", detail=None):
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus=corpus)
    return Verdict(cell=cell, check=check, status=status, headline="h", detail=detail)


def test_one_annotation_a_failing_cell():
    found = ci.failures(
        [verdict(), verdict("error", check="state"), verdict("pass"), verdict("known")], ["nothing ran"]
    )
    assert [title for title, _ in found] == ["te-current-tiny-native: gemm fail, state error", "fp8-parity"]
    assert found[0][1].count("\n") == 1


def test_workflow_commands_are_escaped():
    assert ci.error_lines([("a: b, c%", "1%\r\n2: 3, 4")], {"GITHUB_ACTIONS": "true"}) == [
        "::error title=a%3A b%2C c%25::1%25%0D%0A2: 3, 4"
    ]


GAP = Gap(mean=0.01, low=-float("inf"), high=float("inf"), n=1, text="t")


@pytest.mark.parametrize(
    ("detail", "name", "value"),
    [
        (
            LossDetail(margin=0.005, seeds=[0], odd_start="gradient norm 0.96x BF16's"),
            "first step",
            "gradient norm 0.96x BF16's",
        ),
        (LossDetail(margin=0.005, seeds=[0], gap=GAP), "low", "-inf"),
        (NumericsDetail(snr=28.5), "snr", "28.5"),
        (
            LossDetail(margin=0.005, seeds=[0], unmeasured=["no numbers of A", "no numbers of B"]),
            "rules only",
            "no numbers of A; no numbers of B",
        ),
    ],
)
def test_a_detail_is_a_property(detail, name, value):
    assert dict(ci.properties([verdict(detail=detail)]))[name] == value
    assert name not in dict(ci.properties([verdict()]))


def test_a_summary_that_is_too_long_is_cut_to_its_head(tmp_path):
    path = tmp_path / "s.md"
    ci.summarize(lambda: "# T\n\nsentence\n" + "x" * ci.SUMMARY_LIMIT, {"GITHUB_STEP_SUMMARY": str(path)})
    assert path.read_text() == "# T\n\nsentence\n\nThe whole report is too long for a summary; see the job's files.\n"


def test_compare_annotates_what_is_worse(trajectory, tmp_path, capsys, monkeypatch):
    (tmp_path / "policy.toml").write_text('[[loss]]\nmargin = 0.005\nseeds = [3]\nwhy = "a made-up row"\n')
    for name, shift in (("old", 0.0), ("new", 0.02)):
        for r in [
            x for s in range(3) for x in (trajectory(seed=s), trajectory("te-current", s, shift + 1e-4 * (s + 1)))
        ]:
            write_json(tmp_path / name / name_of(r), r)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "s.md"))
    assert main(["compare", str(tmp_path / "old"), str(tmp_path / "new"), "--golden-dir", str(tmp_path)]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(lines) == 1
    assert lines[0].startswith("::error title=te-current-nano-emulated loss%3A recipe changed%3A worse::")
    assert "# FP8 parity: OLD and NEW" in (tmp_path / "s.md").read_text()
