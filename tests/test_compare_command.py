"""``fp8parity compare``: its exit status, what it prints, and the reports that it writes."""

from __future__ import annotations

import json
import math
from functools import partial

import pytest
import two_sides
from fp8parity.cli import main
from fp8parity.records.schema import Measurement, Measurements
from two_sides import TOML, save


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


@pytest.fixture
def command(runs, tmp_path, monkeypatch):
    """Compares two stored sets; returns the exit status."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    (tmp_path / "policy.toml").write_text(TOML)

    def call(new, report) -> int:
        old, later = save(tmp_path / "old", runs()), save(tmp_path / "new", runs("2.13.0", **new))
        return main(["compare", str(old), str(later), "--golden-dir", str(tmp_path), "--report", str(report)])

    return call


CASES = pytest.mark.parametrize(
    ("new", "code"), [({}, 0), ({"recipe": 0.02}, 1), ({"seeds": 2}, 2), ({"recipe": -0.02}, 0)]
)


@CASES
def test_the_command_by_its_exit_status(command, tmp_path, capsys, new, code):
    report = tmp_path / "out" / "c.json"
    assert command(new, report) == code
    first, *rest = capsys.readouterr().out.splitlines()
    kept = json.loads(report.read_text())
    assert first == kept["sentence"]
    assert "torch 2.12.0 -> 2.13.0" in first
    assert kept["updates"] == [{"name": "torch", "old": "2.12.0", "new": "2.13.0"}]
    assert any(line.startswith("missing: te-current-nano-emulated seed2 (in NEW)") for line in rest) == (code == 2)
    told = "this set has no manifest: what was selected is not known"
    assert [line for line in rest if line.endswith(told)] == [f"{tmp_path / side}: {told}" for side in ("old", "new")]


@CASES
def test_the_command_writes_markdown(command, tmp_path, capsys, new, code):
    assert command(new, tmp_path / "c.md") == code
    first = capsys.readouterr().out.splitlines()[0]
    text = (tmp_path / "c.md").read_text()
    assert f"**{first}**" in text
    assert "| te-current-nano-emulated | loss |" in text
    assert ("## What is missing" in text) == (code == 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{old}", "{folder}/no"), "no holds no records"),
        (("{old}", "{old}"), "old hold the same records: one side was named twice, or NEW was never run"),
        (("{old}", "{folder}/no.zip"), "no.zip: no such file"),
        (("{old}", "{old}", "--report", "{folder}/x.txt"), "no renderer for '.txt'; use .md or .html or .json"),
    ],
)
def test_the_command_with_bad_input(tmp_path, capsys, runs, arguments, words):
    (tmp_path / "policy.toml").write_text(TOML)
    old = save(tmp_path / "old", runs())
    given = [a.format(old=old, folder=tmp_path) for a in arguments]
    assert main(["compare", *given, "--golden-dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_one_set_with_a_number_that_is_nan_is_still_one_set(tmp_path, capsys, runs, trajectory):
    """NaN is not equal to NaN. The race of a kernel once left one in a gate."""
    (tmp_path / "policy.toml").write_text(TOML)
    cell, made = trajectory("te-current").cell, two_sides.provenance(trajectory)
    value = [Measurement(metric="fprop sqnr", where="x", value=math.nan)]
    nan = Measurements(cell=cell, check="gemm", values=value, notes=[], provenance=made, session="s")
    old = save(tmp_path / "old", [*runs(), nan])
    assert main(["compare", str(old), str(old), "--golden-dir", str(tmp_path)]) == 2
    assert "old hold the same records" in capsys.readouterr().err


def test_a_comparison_of_bf16_alone_says_so(tmp_path, capsys, runs):
    """Nothing moved is then no word about a recipe."""
    (tmp_path / "policy.toml").write_text(TOML)
    sides = [[r for r in runs(version) if r.cell.is_control] for version in ("2.12.0", "2.13.0")]
    old, new = (save(tmp_path / name, side) for name, side in zip(("old", "new"), sides, strict=True))
    assert main(["compare", str(old), str(new), "--golden-dir", str(tmp_path)]) == 0
    assert "\nonly BF16 was compared, and no recipe\n" in capsys.readouterr().out
