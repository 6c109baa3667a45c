"""Sets that are incomplete or of several commits: ``judge`` says what is wrong, and no golden comes from them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fp8parity.cli import main
from fp8parity.judging.completeness import Defect, defects, missing, refuse
from fp8parity.judging.references.loss import from_runs
from fp8parity.records import manifest
from fp8parity.records.manifest import Manifest, Outcome, Selected
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import name_of, write_json

TOML = """
[[loss]]
margin = 0.005
seeds = [3]
why = "a made-up row"

[[band]]
check = "gemm"
band = 0.5
why = "a made-up band"
"""


@pytest.fixture
def golden(trajectory, tmp_path) -> Path:
    folder = tmp_path / "golden"
    folder.mkdir()
    (folder / "policy.toml").write_text(TOML)
    write_json(folder / "loss" / "nano-topics.json", from_runs([trajectory(seed=s) for s in range(3)], []))
    return folder


def made_by(trajectory, **changes: object) -> Provenance:
    found: Provenance = trajectory().provenance.model_copy(update=changes)
    return found


@pytest.fixture
def runs(trajectory):
    """BF16 and te-current of three seeds, of one session."""
    return [
        trajectory(recipe, s, 1e-4 * (s + 1) * (recipe != "bf16"))
        for recipe in ("bf16", "te-current")
        for s in range(3)
    ]


def note(trajectory, records, *more: Selected, session: str = "s", **changes: object) -> Manifest:
    cells: dict[str, list[str]] = {}
    for r in records:
        cells.setdefault(r.cell.id, []).append(name_of(r))
    made = [
        Selected(cell=c, test="test_loss", outcome="passed", checks=["loss parity"], records=names)
        for c, names in cells.items()
    ]
    given: Any = {"session": session, "options": [], "started": "a", "ended": "b", "status": "ok"}
    given |= {name: changes.pop(name) for name in list(changes) if name in Manifest.model_fields}
    return Manifest(**given, provenance=made_by(trajectory, **changes), selected=[*made, *more])


def put(folder: Path, records, *manifests: Manifest) -> Path:
    for r in records:
        write_json(folder / name_of(r), r)
    for m in manifests:
        manifest.write(folder, m)
    return folder


def doubts(found: list[Defect]) -> list[str]:
    """What stands against a complete set."""
    return [d.text for d in found if not d.incomplete]


def judged(folder: Path, golden: Path, *more: str) -> int:
    return main(["judge", str(folder), "--golden-dir", str(golden), *more])


def test_a_whole_set_is_green_and_may_be_released(trajectory, runs, golden, tmp_path, capsys):
    folder = put(tmp_path / "set", runs, note(trajectory, runs))
    assert judged(folder, golden, "--release") == 0
    assert "Accept" in capsys.readouterr().out


@pytest.mark.parametrize("outcome", ["failed", "not run"])
def test_a_selected_test_that_left_no_record_is_named(trajectory, runs, outcome: Outcome):
    lost = Selected(
        cell="te-block-tiny-native", test="test_gemm", outcome=outcome, checks=["gemm", "large"] * (outcome == "failed")
    )
    [line] = missing([note(trajectory, runs, lost)], runs)
    how = "gemm, large (no record holds it)" if outcome == "failed" else "test_gemm (it was not run)"
    assert line == f"the manifest of session s selected te-block-tiny-native {how}"


def test_a_deleted_family_and_a_deleted_seed_are_named(trajectory, runs, golden, tmp_path, capsys):
    folder = put(tmp_path / "set", [r for r in runs if r.cell.is_control], note(trajectory, runs))
    assert judged(folder, golden) == 1
    assert "selected te-current-nano-emulated loss parity (no record holds it)" in capsys.readouterr().out
    put(folder, runs[:-1])
    assert judged(folder, golden) == 1
    name = name_of(runs[-1])
    assert (
        f"te-current-nano-emulated loss parity (1 of its 3 records are missing, first {name})"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(("outcome", "lost"), [("failed", True), ("not run", False)])
def test_an_earlier_session_does_not_make_good_for_a_later_crash(trajectory, runs, outcome: Outcome, lost: bool):
    """A session that was stopped before the test says nothing of it."""
    later = Selected(cell="te-current-nano-emulated", test="test_loss", outcome=outcome)
    first = note(trajectory, runs)
    second = note(trajectory, runs[:3], later, session="t").model_copy(update={"started": "b"})
    assert bool(missing([first, second], runs)) == lost


@pytest.mark.parametrize(
    ("changes", "good"),
    [
        ({}, True),
        ({"options": ["--require", "te-*"]}, True),
        ({"options": []}, False),
        ({"problems": ["another"]}, False),
        ({"status": "interrupted"}, False),
        ({"started": "0"}, False),
        ({"selected": []}, False),
    ],
)
def test_a_later_session_makes_good_for_a_problem(trajectory, runs, changes, good):
    """It had the same options but for -k, and ran at least the same tests to their end."""
    made = note(trajectory, runs)
    red = made.model_copy(
        update={"problems": ["required cell te-x was removed"], "options": ["-k", "gemm", "--require", "te-*"]}
    )
    later = {"session": "t", "started": "b", "options": ["-k", "gemm or state", "--require", "te-*"], **changes}
    found = missing([red, made.model_copy(update=later)], runs)
    assert ("session s: required cell te-x was removed" in found) != good


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"commit": "def"}, "the records are of 2 commits: abc (5 records), def (1 records)"),
        ({"dirty": True}, "1 records are of a tree with uncommitted changes: te-current-nano-emulated"),
        ({"commit": "unknown", "dirty": True}, "1 records are of an unknown commit, because no git repository"),
    ],
)
def test_several_commits_and_an_unclean_tree_are_named_and_never_released(
    trajectory, runs, golden, tmp_path, capsys, changes, words
):
    records = [*runs[:-1], runs[-1].model_copy(update={"provenance": made_by(trajectory, **changes)})]
    folder = put(tmp_path / "set", records, note(trajectory, runs))
    assert judged(folder, golden) == 0
    assert words in capsys.readouterr().out
    assert judged(folder, golden, "--release") == 1
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("command", [("golden", "store"), ("golden", "bounds", "--write")], ids=" ".join)
@pytest.mark.parametrize(
    ("changes", "lost", "words"),
    [
        ({"commit": "def"}, 0, "2 commits"),
        ({"dirty": True}, 0, "uncommitted"),
        ({}, 1, "1 of its 3 records are missing"),
    ],
)
def test_no_golden_comes_from_such_a_set(trajectory, runs, golden, tmp_path, capsys, command, changes, lost, words):
    records = [
        *runs[: len(runs) - 1 - lost],
        runs[-1].model_copy(update={"provenance": made_by(trajectory, **changes)}),
    ]
    value, where = Measurement(metric="m", where="w", value=1.0), made_by(trajectory)
    numbers = Measurements(cell=runs[-1].cell, check="gemm", values=[value], provenance=where, session="s")
    folder = put(tmp_path / "set", [*records, numbers], note(trajectory, runs))
    before = {p: p.read_bytes() for p in golden.rglob("[!.]*") if p.is_file()}
    assert main([*command, str(folder), "--golden-dir", str(golden)]) == 2
    error = capsys.readouterr().err
    assert f"{folder}: this set may not become a reference: " in error
    assert words in error
    assert {p: p.read_bytes() for p in golden.rglob("[!.]*") if p.is_file()} == before
    whole = put(tmp_path / "whole", [*runs, numbers], note(trajectory, runs))
    assert main([*command, str(whole), "--golden-dir", str(golden)]) == 0


def test_a_record_under_the_name_of_another_is_refused(runs, golden, tmp_path, capsys):
    folder = put(tmp_path / "set", runs)
    wrong = folder / name_of(runs[0]).replace("seed0", "seed7")
    shutil.copy(folder / name_of(runs[0]), wrong)
    assert judged(folder, golden) == 2
    assert (
        f"{wrong} holds bf16-nano-native seed0; name it bf16-nano-native-topics-seed0.json or remove it"
        in capsys.readouterr().err
    )


OWN = ["--parity-corpus", "text:own.txt"]


def killed(made: Manifest, *options: str) -> Manifest:
    """Another session with the tests of ``made``, that was killed before the first."""
    none = [Selected(cell=s.cell, test=s.test) for s in made.selected]
    given = {
        "session": "t",
        "started": "b",
        "status": "killed, or still running",
        "options": [*options],
        "selected": none,
    }
    return made.model_copy(update=given)


def asked(made: Manifest, *options: str, **changes: object) -> Manifest:
    return made.model_copy(update={"options": [*options], **changes})


def test_a_session_killed_on_another_corpus_is_red(trajectory, runs, golden, tmp_path, capsys):
    made = note(trajectory, runs)
    assert judged(put(tmp_path / "same", runs, made, killed(made)), golden) == 0
    capsys.readouterr()
    assert judged(put(tmp_path / "other", runs, made, killed(made, *OWN)), golden) == 1
    assert "session t selected te-current-nano-emulated test_loss (it was not run)" in capsys.readouterr().out


def test_a_set_without_its_release_checks_is_not_released(trajectory, runs, golden, tmp_path, capsys):
    """Another session may have run them."""
    daily = note(trajectory, runs).model_copy(update={"left_out": ["twins", "large"]})
    folder = put(tmp_path, runs, daily)
    assert judged(folder, golden) == 0
    assert judged(folder, golden, "--release") == 1
    assert "this set ran without --release, which adds large, twins" in capsys.readouterr().out
    ran = [s.model_copy(update={"checks": ["twins", "large"]}) for s in daily.selected]
    put(tmp_path, runs, daily.model_copy(update={"session": "t", "left_out": [], "selected": ran}))
    assert judged(folder, golden, "--release") == 0


@pytest.mark.parametrize(
    ("whole", "lost", "good"),
    [
        ([], OWN, False),
        (OWN, [], False),
        (OWN, OWN, True),
        (["--parity-seeds", "2"], [], False),
        ([], ["--parity-mode", "compiled"], False),
        ([], ["--parity-golden-update"], False),
        ([], ["--parity-records", "elsewhere", "--parity-execution", "emulated", "-m", "cpu"], True),
        (["--parity-resume", *OWN, "-k", "te"], ["--parity-recipe", "te-*", *OWN], True),
    ],
)
def test_only_the_same_question_makes_up_for_a_test_that_was_not_run(trajectory, runs, whole, lost, good):
    """Options that choose tests, folders or old runs ask nothing else of a test."""
    made = note(trajectory, runs)
    assert (missing([asked(made, *whole), killed(made, *lost)], runs) == []) == good


@pytest.mark.parametrize(
    "changes", [{"device": "another"}, {"driver": "590.10"}, {"cuda": "99.0"}, {"packages": {"torch": "9.9"}}], ids=str
)
def test_a_lost_record_is_not_that_of_another_machine(trajectory, changes):
    """It has the same name there. Neither do the tests of that machine make up for one that was not run."""
    [run] = [trajectory("te-block", 0)]
    there = run.model_copy(update={"provenance": made_by(trajectory, **changes), "session": "t"})
    here, elsewhere = note(trajectory, [run]), note(trajectory, [there], session="t", **changes)
    assert missing([here, elsewhere], [run, there]) == []
    for records, gone in (([there], "s"), ([run], "t")):
        [line] = missing([here, elsewhere], records)
        assert (
            line == f"the manifest of session {gone} selected te-block-nano-emulated loss parity (no record holds it)"
        )
    unrun = here.model_copy(update={"selected": [Selected(cell=run.cell.id, test="t")]})
    assert len(missing([unrun, elsewhere], [there])) == 1
    assert doubts(defects([elsewhere], [there])) == []


def test_several_commits_are_refused_unless_the_user_answers(trajectory, runs):
    records = [*runs[:-1], runs[-1].model_copy(update={"provenance": made_by(trajectory, commit="def")})]
    with pytest.raises(ValueError, match=r"^set.zip: this set may not become a reference: .* add --several-commits$"):
        refuse("set.zip", [], records)
    refuse("set.zip", [], records, several_commits=True)


def test_a_set_without_a_manifest_lacks_seeds_between_two_stages(trajectory):
    def found(*seeds: int) -> list[str]:
        runs = [trajectory(recipe, seed) for recipe in ("bf16", "te-current") for seed in seeds]
        return missing([], runs, lambda cell: (3, 5, 8))

    assert [found(*range(n)) for n in (3, 5, 8, 20)] == [[]] * 4
    assert found(0, 1, 2, 4)[0].endswith("has 4 seeds (0, 1, 2, 4), and a session ends with 3, 5, 8")
    assert len(missing([], [trajectory()], lambda cell: (3,))) == 1, "BF16 alone"
    assert doubts(defects([], [trajectory()])) == ["this set has no manifest: what was selected is not known"]
