"""A cell that the packages of OLD were too old for is new in NEW. Any other cell that one side lacks is missing."""

from __future__ import annotations

from functools import partial

import pytest
import two_sides
from fp8parity.cli import main
from fp8parity.judging.compare import compare
from fp8parity.judging.completeness import beyond_versions
from fp8parity.judging.references import Goldens
from fp8parity.records import manifest
from fp8parity.records.manifest import Selected
from fp8parity.records.storage import name_of
from two_sides import POLICY, TOML, save, session

CELL = "te-block-nano-emulated"
REASON = "Skipped: needs torchao 0.18 or later; 0.17.0 is installed"


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


@pytest.fixture
def more(trajectory):
    """The runs of a cell that NEW alone holds."""
    return [trajectory("te-block", s, 0.0, provenance=two_sides.provenance(trajectory, "2.13.0")) for s in range(3)]


def skipped(reason: str = REASON, test: str = "test_gemm") -> Selected:
    return Selected(cell=CELL, test=test, outcome="skipped", reason=reason)


def test_what_a_version_cannot_run_is_new_and_green(runs, more):
    found = compare(runs(), [*runs("2.13.0"), *more], Goldens(), POLICY, {CELL: "torchao 0.18 or later"})
    assert (found.code, found.missing) == (0, [])
    assert [m.text for m in found.added] == [f"{CELL} (it needs torchao 0.18 or later)"]
    assert found.sentence.startswith("Nothing moved beyond its margin: ")
    assert f"; new: {CELL} (it needs torchao 0.18 or later) (" in found.sentence


def test_without_that_reason_it_is_missing_and_the_first_words_say_it(runs, more):
    found = compare(runs(), [*runs("2.13.0"), *more], Goldens(), POLICY)
    assert (found.code, found.added) == (2, [])
    assert found.sentence.startswith("Cannot say, because one side lacks cells. What both hold is inside its margins: ")
    assert f"; missing: {CELL} seed0, seed1, seed2 (in OLD)" in found.sentence


def test_what_new_lost_is_missing_whatever_old_needed(runs, trajectory):
    more = [trajectory("te-block", s, 0.0, provenance=two_sides.provenance(trajectory)) for s in range(3)]
    found = compare([*runs(), *more], runs("2.13.0"), Goldens(), POLICY, {CELL: "torchao 0.18 or later"})
    assert (found.code, found.added) == (2, [])
    assert [m.missing_in for m in found.missing] == ["NEW"]


@pytest.mark.parametrize(
    ("selected", "found"),
    [
        ([skipped(), skipped(test="test_state")], {CELL: "torchao 0.18 or later"}),
        ([skipped(), Selected(cell=CELL, test="test_state", outcome="failed")], {}),
        ([skipped(), skipped("needs a GPU of sm_90; this machine has none")], {}),
        ([skipped("needs the package torchao, which is not installed")], {}),
        ([Selected(cell=CELL, test="test_gemm", outcome="passed", reason=REASON)], {}),
        ([], {}),
    ],
    ids=["all", "one failed", "another reason", "not installed", "ran", "not selected"],
)
def test_only_a_cell_of_which_every_test_was_skipped_for_its_version_counts(trajectory, selected, found):
    assert beyond_versions([session(trajectory, *selected)]) == found


def test_the_command_reads_the_manifest_of_old(runs, more, trajectory, tmp_path, capsys):
    old, new = save(tmp_path / "old", runs()), save(tmp_path / "new", [*runs("2.13.0"), *more])
    assert main(["compare", str(old), str(new)]) == 2
    assert "missing: te-block-nano-emulated" in capsys.readouterr().out
    manifest.write(old, session(trajectory, skipped()))
    page, text = tmp_path / "c.html", tmp_path / "c.md"
    assert main(["compare", str(old), str(new), "--report", str(page), "--report", str(text)]) == 0
    assert "new: te-block-nano-emulated (it needs torchao 0.18 or later)" in capsys.readouterr().out
    for path in (page, text):
        assert "What is new" in path.read_text() and "What is missing" not in path.read_text()


@pytest.mark.parametrize(("old", "new", "lacks"), [(3, 5, "OLD"), (5, 3, "NEW")])
def test_the_seeds_of_a_further_look_are_not_missing(runs, old, new, lacks):
    """One side decided with the three seeds of its first look, and its manifests say that it lost nothing."""
    sides = runs(seeds=old), runs("2.13.0", seeds=new)
    found = compare(*sides, Goldens(), POLICY, whole=["OLD", "NEW"])
    assert (found.code, found.missing) == (0, [])
    assert [m.text for m in found.added] == [
        f"bf16-nano-native seed3, seed4 ({lacks} decided without)",
        f"te-current-nano-emulated seed3, seed4 ({lacks} decided without)",
    ]
    assert compare(*sides, Goldens(), POLICY, whole=["NEW" if lacks == "OLD" else "OLD"]).code == 2, (
        "that side may have lost them"
    )


def test_fewer_seeds_than_the_first_look_are_missing(runs):
    found = compare(runs(seeds=2), runs("2.13.0", seeds=3), Goldens(), POLICY, whole=["OLD", "NEW"])
    assert (found.code, [m.items for m in found.missing]) == (2, [["seed2"], ["seed2"]])


@pytest.mark.parametrize(("written", "code"), [(True, 0), (False, 2)])
def test_the_manifest_of_a_side_says_that_it_is_whole(tmp_path, runs, trajectory, written, code, capsys):
    old, new = save(tmp_path / "old", runs()), save(tmp_path / "new", runs("2.13.0", seeds=5))
    if written:
        names = [name_of(r) for r in runs() if r.cell.recipe == "te-current"]
        manifest.write(
            old,
            session(
                trajectory,
                Selected(cell="te-current-nano-emulated", test="test_loss_parity", outcome="passed", records=names),
            ),
        )
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden/policy.toml").write_text(TOML)
    assert main(["compare", str(old), str(new), "--golden-dir", str(tmp_path / "golden")]) == code
    assert ("OLD decided without" in capsys.readouterr().out) == written
