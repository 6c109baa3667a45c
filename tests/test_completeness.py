"""Sets that are incomplete or of several commits: ``judge`` says what is wrong, and no golden comes from them."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from fp8parity.cli import main
from fp8parity.judging.completeness import Defect, defects, missing, refuse
from fp8parity.judging.references.loss import from_runs
from fp8parity.records import manifest
from fp8parity.records.manifest import Manifest, Outcome, Selected, Shard
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
    """BF16 and te-current of three seeds, of one session, with the fields of today."""
    rates: Any = {"lr of matrices": (1e-4, 1e-4)}
    fields = {"partial": False, "first_gradients": {"a": 1.0}, "unigram": 5.0, "bigram": 3.5, "hyperparameters": rates}
    return [
        trajectory(recipe, s, 1e-4 * (s + 1) * (recipe != "bf16"), **fields)
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


@pytest.fixture
def judged(golden, tmp_path, capsys):
    """Judge a set in a folder of its own, and return the exit status and what was printed."""
    count = itertools.count()

    def judge(records, *manifests: Manifest, more: tuple[str, ...] = ()) -> tuple[int, str]:
        folder = put(tmp_path / f"set{next(count)}", records, *manifests)
        code = main(["judge", str(folder), "--golden-dir", str(golden), *more])
        return code, "".join(capsys.readouterr())

    return judge


def test_a_whole_set_is_green_and_may_be_released(trajectory, runs, judged):
    code, out = judged(runs, note(trajectory, runs), more=("--release",))
    assert code == 0 and "Accept" in out


def test_partial_records_are_not_released_and_not_judged_with_whole_ones(trajectory, runs, judged):
    old = [r.model_copy(update={"partial": True}) for r in runs]
    for records, more, count in ((old, (), 0), (old, ("--release",), 6), ([*runs[:5], old[5]], (), 1)):
        code, out = judged(records, note(trajectory, runs), more=more)
        assert (code, f"{count} records are partial, as only old ones are: " in out) == (bool(count), bool(count))


@pytest.mark.parametrize(("options", "refused"), [([], True), (["--parity-golden-update"], False)])
def test_record_that_no_manifest_lists_is_not_released(trajectory, runs, judged, options, refused):
    """A session that records a golden lists none."""
    made = note(trajectory, [r for r in runs if r.seed < 2], options=options)
    for more, said in (((), False), (("--release",), refused)):
        code, out = judged(runs, made, more=more)
        words = "2 records are not listed by the manifest of their session: bf16-nano-native-topics-seed2.json, te-"
        assert (code, words in out) == (said, said)


@pytest.mark.parametrize(("seeds", "red"), [((0, 1, 2), False), ((0, 2, 3), True), ((1, 2, 3), True)], ids=str)
def test_seeds_with_a_hole_need_a_manifest(trajectory, judged, seeds, red):
    """--seeds takes a list."""
    runs = [
        trajectory(recipe, s, 1e-4 * (s + 1) * (recipe != "bf16")) for recipe in ("bf16", "te-current") for s in seeds
    ]
    words = "2 cells lack a seed below their last one, and no manifest says that it was not asked for: bf16-nano-native, te-"
    assert words in judged(runs)[1] if red else judged(runs)[0] == 0
    assert words not in judged(runs, note(trajectory, runs))[1]


@pytest.mark.parametrize("outcome", ["failed", "not run"])
def test_a_selected_test_that_left_no_record_is_named(trajectory, runs, outcome: Outcome):
    lost = Selected(
        cell="te-block-tiny-native", test="test_gemm", outcome=outcome, checks=["gemm", "large"] * (outcome == "failed")
    )
    [line] = missing([note(trajectory, runs, lost)], runs)
    how = "gemm, large (no record holds it)" if outcome == "failed" else "test_gemm (it was not run)"
    assert line == f"the manifest of session s selected te-block-tiny-native {how}"


def test_a_deleted_family_and_a_deleted_seed_are_named(trajectory, runs, judged):
    code, out = judged([r for r in runs if r.cell.is_control], note(trajectory, runs))
    assert code == 1 and "selected te-current-nano-emulated loss parity (no record holds it)" in out
    [line] = missing([note(trajectory, runs)], runs[:-1])
    lost = f"te-current-nano-emulated loss parity (1 of its 3 records are missing, first {name_of(runs[-1])})"
    assert line.endswith(lost)


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
def test_several_commits_or_an_unclean_tree_are_never_released(trajectory, runs, judged, changes, words):
    records = [*runs[:-1], runs[-1].model_copy(update={"provenance": made_by(trajectory, **changes)})]
    for more, status in (((), 0), (("--release",), 1)):
        code, out = judged(records, note(trajectory, runs), more=more)
        assert code == status and words in out


@pytest.mark.parametrize("command", [("golden", "store"), ("golden", "bounds", "--write")], ids=" ".join)
def test_no_golden_comes_from_several_commits(trajectory, runs, golden, tmp_path, capsys, command):
    value, where = Measurement(metric="m", where="w", value=1.0), made_by(trajectory)
    numbers = Measurements(cell=runs[-1].cell, check="gemm", values=[value], provenance=where, session="s")
    records = [*runs[:-1], runs[-1].model_copy(update={"provenance": made_by(trajectory, commit="def")}), numbers]
    folder = put(tmp_path / "set", records, note(trajectory, runs))
    before = {p: p.read_bytes() for p in golden.rglob("[!.]*") if p.is_file()}
    assert main([*command, str(folder), "--golden-dir", str(golden)]) == 2
    error = capsys.readouterr().err
    assert f"{folder}: this set may not become a reference: " in error and "2 commits" in error
    assert {p: p.read_bytes() for p in golden.rglob("[!.]*") if p.is_file()} == before
    whole = put(tmp_path / "whole", [*runs, numbers], note(trajectory, runs))
    assert main([*command, str(whole), "--golden-dir", str(golden)]) == 0


def test_a_record_under_the_name_of_another_is_refused(runs, golden, tmp_path, capsys):
    folder = put(tmp_path / "set", runs)
    wrong = folder / name_of(runs[0]).replace("seed0", "seed7")
    shutil.copy(folder / name_of(runs[0]), wrong)
    assert main(["judge", str(folder), "--golden-dir", str(golden)]) == 2
    said = f"{wrong} holds bf16-nano-native seed0; name it bf16-nano-native-topics-seed0.json or remove it"
    assert said in capsys.readouterr().err


OWN = ["--parity-corpus", "text:own.txt"]


def killed(made: Manifest, *options: str) -> Manifest:
    """Another session with the tests of ``made``, that was killed before the first."""
    none = [Selected(cell=s.cell, test=s.test) for s in made.selected]
    given = {"session": "t", "started": "b", "status": "killed, or still running", "selected": none}
    return made.model_copy(update={**given, "options": [*options]})


def test_a_set_without_its_release_checks_is_not_released(trajectory, runs, judged):
    """Another session may have run them."""
    daily = note(trajectory, runs).model_copy(update={"left_out": ["twins", "large"]})
    assert judged(runs, daily)[0] == 0
    code, out = judged(runs, daily, more=("--release",))
    assert code == 1 and "this set ran without --release, which adds large, twins" in out
    ran = [s.model_copy(update={"checks": ["twins", "large"]}) for s in daily.selected]
    other = daily.model_copy(update={"session": "t", "left_out": [], "selected": ran})
    assert judged(runs, daily, other, more=("--release",))[0] == 0


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
    assert (missing([made.model_copy(update={"options": [*whole]}), killed(made, *lost)], runs) == []) == good


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
    words = r"^set.zip: this set may not become a reference: "
    for changes in ({"commit": "def"}, {"dirty": True}):
        records = [*runs[:-1], runs[-1].model_copy(update={"provenance": made_by(trajectory, **changes)})]
        with pytest.raises(ValueError, match=f"{words}.*{'add --several-commits$' if 'commit' in changes else ''}"):
            refuse("set.zip", [], records)
    refuse(
        "set.zip",
        [],
        [runs[0], runs[1].model_copy(update={"provenance": made_by(trajectory, commit="d")})],
        several_commits=True,
    )
    with pytest.raises(ValueError, match=f"{words}.*1 of its 3 records are missing"):
        refuse("set.zip", [note(trajectory, runs)], runs[:-1], several_commits=True)


def test_bf16_alone_without_a_manifest_is_red(trajectory, runs, judged):
    assert judged(runs)[0] == 0
    code, out = judged(runs[:3])
    assert code == 1 and "only the BF16 control was checked and no recipe" in out
    assert doubts(defects([], [trajectory()])) == ["this set has no manifest: what was selected is not known"]


SHARDS = [Shard(index=i, count=3, split="a" * 64) for i in (1, 2, 3)]


def test_all_shards_are_complete(trajectory):
    assert missing([note(trajectory, [], session=str(s.index), shard=s) for s in SHARDS], []) == []
    assert missing([note(trajectory, [])], []) == []


@pytest.mark.parametrize(
    ("control", "recipe", "others", "alone"),
    [
        (True, "skipped", True, True),
        (True, "passed", True, False),
        (True, "skipped", False, True),
        (True, None, True, False),
        (False, "skipped", True, False),  # nothing ran, which is told otherwise
    ],
)
def test_shards_without_any_recipe_are_a_problem(
    trajectory, control: bool, recipe: Outcome | None, others: bool, alone: bool
):
    """A shard that holds the control alone is sound if another shard checked a recipe. ``others``: that shard is there."""
    plain = [Selected(cell="bf16-nano-native", test="test_layers", outcome="passed")] if control else []
    tests = (
        [Selected(cell="te-current-nano-native", test="test_layers", outcome=recipe, reason="no GPU")] if recipe else []
    )
    first, second = (
        note(trajectory, [], *made, session=str(i), shard=Shard(index=i, count=2, split="abcdefghij"))
        for i, made in ((1, plain), (2, tests))
    )
    both = [first, second] if others else [first.model_copy(update={"selected": [*plain, *tests]})]
    found = [line for line in missing(both, []) if "BF16 control" in line]
    words = "only the BF16 control was checked and no recipe in 2 shards (split abcdefgh): 1 tests of recipes were skipped, first no GPU"
    assert found == ([words] if alone else [])


GPU: dict[str, Any] = {"device": "NVIDIA H100", "capability": [9, 0], "cuda": "13.0", "driver": "580"}


@pytest.mark.parametrize("other", [{"split": "b" * 64}, {"device": "NVIDIA H200"}], ids=str)
def test_shards_of_another_split_or_machine_are_incomplete(trajectory, other):
    strange = SHARDS[1].model_copy(update={k: v for k, v in other.items() if k == "split"})
    there = {**GPU, **{k: v for k, v in other.items() if k != "split"}}
    notes = [note(trajectory, [], session=str(s.index), shard=s, **GPU) for s in (SHARDS[0], SHARDS[2])]
    found = missing([*notes, note(trajectory, [], session="2", shard=strange, **there)], [])
    assert [line.split(" (split")[0] for line in found] == [
        "shard 2 of 3 is missing, and shard 1, 3 is here",
        "shard 1, 3 of 3 is missing, and shard 2 is here",
    ]
    assert all("; another shard was split differently, or had another device" in line for line in found)


@pytest.mark.parametrize("changes", [{"device": "NVIDIA H200"}, {"driver": "590"}, {"cuda": "99.0"}], ids=str)
def test_other_machine_does_not_cover_a_shard(trajectory, changes):
    def gate(name: str, *indices: int, **machine: Any) -> list[Manifest]:
        return [note(trajectory, [], session=f"{name} {i}", shard=SHARDS[i - 1], **machine) for i in indices]

    whole, there = gate("a", 1, 2, 3, **GPU), {**GPU, **changes}
    [line] = missing([*whole, *gate("b", 1, 3, **there)], [])
    assert line.startswith("shard 2 of 3 is missing, and shard 1, 3 is here")
    assert missing([*whole, *gate("b", 1, 2, 3, **there)], []) == []


def test_session_that_ended_early_and_records_of_none_are_named(trajectory, runs):
    early = note(trajectory, runs, status="killed")
    later = note(trajectory, runs, session="t", started="b")
    red = note(trajectory, runs, status="tests failed")
    assert not any("ended early" in d.text for d in defects([red], runs))
    for manifests, named in (([early], True), ([early, later], False)):
        assert ("session s ended early: killed" in [d.text for d in defects(manifests, runs)]) == named
    strange = [*runs[:-1], runs[-1].model_copy(update={"session": "x"})]
    words = f"1 records are of no session in the manifests: {name_of(runs[-1])}"
    for held, named in ((runs[:-1], True), (runs, False)):
        assert (words in [d.text for d in defects([note(trajectory, held)], strange)]) == named
