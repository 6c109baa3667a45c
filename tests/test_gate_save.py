"""``--parity-save``: a session keeps its own records and its manifest, green or red."""

from __future__ import annotations

import gates
import pytest
from fp8parity.cli import main
from fp8parity.records import history, manifest, sets

pytestmark = pytest.mark.slow


@pytest.fixture
def gate(tmp_path):
    return gates.of(tmp_path)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "two workers"])
def test_a_session_is_kept_with_its_manifest(gate, tmp_path, workers):
    assert gate(recipes=("te-block",)).returncode == 0  # an earlier session, whose records lie in the same folder
    done = gate("--parity-save", "v1", *workers, recipes=("te-current",))
    [kept] = history.runs(tmp_path / ".parity")
    assert (done.returncode, kept.title) == (0, "0001_v1")
    assert f"kept as {kept.path}" in done.stdout
    recipes = {r.cell.recipe for r in sets.load([kept.path])}
    assert "te-current" in recipes and "te-block" not in recipes
    [made] = manifest.load([kept.path])
    assert made.status == "ok" and {s.cell for s in made.selected if s.outcome == "passed"} == {
        "te-current-tiny-emulated"
    }


def test_a_red_session_is_kept_and_stays_red(gate, tmp_path):
    done = gate("--parity-save", "v2", te_block="fail")
    assert done.returncode == 1
    assert [k.title for k in history.runs(tmp_path / ".parity")] == ["0001_v2"]


def test_a_session_without_records_is_kept_as_a_red_run(gate, tmp_path, monkeypatch, capsys):
    """Every test crashed. The history still tells of all runs, and the last one is red."""
    assert gate("--parity-save", "v1", recipes=("te-block",)).returncode == 0
    assert gate("--parity-save", "v2", recipes=("te-block",), te_block="crash", bf16="crash").returncode == 1
    monkeypatch.chdir(tmp_path)
    assert main(["history", "last"]) == 1
    out = capsys.readouterr().out
    assert "red" in out and "nothing was judged: the manifest of session" in out
    assert main(["history", "list"]) == 0
    listed = capsys.readouterr().out
    assert "v1" in listed and "v2" in listed


def test_a_name_that_is_none_is_wrong_usage_before_anything_runs(gate, tmp_path):
    done = gate("--parity-save", "a/b")
    assert done.returncode == 4
    assert "'a/b' is no name of a run" in done.stdout + done.stderr
    assert not (tmp_path / ".parity").exists()
