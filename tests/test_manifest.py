"""The manifest that a session writes: what it selected, what came of it, and what ``judge`` says of a set that lost a part."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.records import manifest
from fp8parity.records.manifest import Manifest, Shard
from fp8parity.records.schema import Measurements
from fp8parity.records.storage import load_records, name_of, write_json
from narrowed import some
from processes import Done, run
from projects import ROOT, make

pytestmark = pytest.mark.slow
GEMM = ("suites/numerics", "-k", "gemm or codes", "--execution", "emulated", "--golden-dir", str(ROOT / "golden"))


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("project"))


def gate(project: Path, records: Path, *more: str, recipes: Sequence[str] = ("te-current",), **variables: str) -> Done:
    chosen = [part for name in recipes for part in ("--recipe", name)]
    return run("pytest", *GEMM, *chosen, "--parity-records", str(records), *more, cwd=project, **variables)


def only(records: Path) -> Manifest:
    [found] = manifest.load([records])
    return found


def judged(*arguments: object) -> int:
    return main(["judge", *map(str, arguments), "--golden-dir", str(ROOT / "golden")])


@pytest.fixture(scope="module")
def session(project, tmp_path_factory) -> Path:
    """A folder of records that a session has left."""
    records = tmp_path_factory.mktemp("set") / "records"
    done = gate(project, records, "--junitxml", str(records.parent / "token-1234.xml"))
    assert done.returncode == 0, done.stdout
    return records


def test_manifest_has_selection_and_options(session):
    found = only(session)
    assert {(s.cell, s.test, s.outcome, *s.checks, *s.records) for s in found.selected if s.outcome != "skipped"} == {
        ("te-current-emulated", test, "passed", check, f"te-current-tiny-emulated-topics-{check}.json")
        for test, check in (("test_codes", "codes"), ("test_gemm_sqnr", "gemm"))
    }
    [skip] = {(s.cell, s.outcome, bool(s.reason)) for s in found.selected if s.outcome == "skipped"}
    assert skip == ("te-current-native", "skipped", True)
    assert {r.session for r in load_records(session)} == {found.session}
    assert found.status == "ok"
    assert found.started <= found.ended
    assert found.started.endswith("+00:00")
    assert found.options[:4] == ["--parity-recipe", "te-current", "--parity-execution", "emulated"]
    assert found.options[-2:] == ["-k", "gemm or codes"]
    assert "token" not in found.model_dump_json()
    assert len(found.provenance.commit) == 40


def test_only_a_complete_set_with_its_manifest_may_be_released(session, tmp_path, capsys):
    assert judged(session, "--release") == 0
    assert "manifest" not in capsys.readouterr().out
    bare = copied(session, tmp_path / "bare", "manifest-")
    for more, code in (((), 0), (("--release",), 1)):
        assert judged(bare, *more) == code
        assert "this set has no manifest: what was selected is not known" in capsys.readouterr().out


def test_folder_of_its_own_ignores_itself_in_git(session, tmp_path):
    """Else the records of one session would make the tree of the next one dirty."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").touch()
    for name in ("new", "mine", "new"):
        manifest.write(tmp_path / name, only(session))
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob(".gitignore")] == ["new/.gitignore"]


def copied(session: Path, to: Path, *without: str) -> Path:
    to.mkdir()
    for path in session.glob("*.json"):
        if not any(word in path.name for word in without):
            (to / path.name).write_bytes(path.read_bytes())
    return to


def test_merged_set_keeps_its_manifests(session, tmp_path, capsys):
    assert main(["merge", str(tmp_path / "all.zip"), str(session)]) == 0
    assert "2 records of 1 environment" in capsys.readouterr().out
    assert manifest.load([tmp_path / "all.zip"]) == [only(session)]
    assert judged(tmp_path / "all.zip", "--release") == 0
    with zipfile.ZipFile(tmp_path / "all.zip") as archive:
        assert only(session).name in archive.namelist()
    assert main(["merge", str(tmp_path / "part.zip"), str(copied(session, tmp_path / "lost", "-codes"))]) == 0
    assert judged(tmp_path / "part.zip") == 1


def test_interrupted_session_is_incomplete(project, tmp_path, capsys):
    """Planted: the session stops after its first failure, so the second test does not run."""
    records = tmp_path / "records"
    done = gate(project, records, "-x", "--golden-dir", str(empty_policy(tmp_path)))
    assert done.returncode != 0
    found = only(records)
    assert [s.outcome for s in found.selected if s.outcome != "skipped"] == ["failed", "not run"]
    judged(records)
    out = capsys.readouterr().out
    assert (
        f"the manifest of session {found.session} selected te-current-emulated test_gemm_sqnr (it was not run)" in out
    )
    assert gate(project, records).returncode == 0  # a second session in the same folder makes good for the first one
    assert judged(records) == 0
    capsys.readouterr()


def empty_policy(folder: Path) -> Path:
    made = folder / "golden"
    made.mkdir()
    (made / "policy.toml").write_text("")
    return made


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("-k", "codes", "--require", "te-current-native"), "required cell te-current-native was skipped: "),
        (("-k", "codes", "test_broken.py", "--continue-on-collection-errors"), "test_broken.py: ModuleNotFoundError: "),
    ],
    ids=["required", "not collected"],
)
def test_problems_of_a_session_make_judge_red(project, tmp_path, capsys, arguments, problem):
    (project / "test_broken.py").write_text("import nothing_of_this_name\n")
    done = gate(project, tmp_path, *arguments)
    assert done.returncode == 1, done.stdout
    [text] = only(tmp_path).problems
    assert text.startswith(problem)
    assert judged(tmp_path) == 1
    assert f"Refuse: the only check that ran is green, but session {only(tmp_path).session}: {text[:40]}" in " ".join(
        capsys.readouterr().out.split()
    )


def test_report_reads_the_records_of_its_own_session_only(project, session, tmp_path):
    """Planted: the folder holds the record of another session, of another machine."""
    folder, report = copied(session, tmp_path / "records", "manifest-"), tmp_path / "r.json"
    [own] = [r for r in load_records(folder) if isinstance(r, Measurements) and r.check == "gemm"]
    foreign = {"provenance": own.provenance.model_copy(update={"device": "FOREIGN"}), "session": "other"}
    other = own.model_copy(update={**foreign, "cell": own.cell.model_copy(update={"recipe": "another"})})
    write_json(folder / name_of(other), other)
    assert gate(project, folder, "--parity-report", str(report)).returncode == 0
    assert "te-current" in report.read_text() and "FOREIGN" not in report.read_text()


# A gate that is split over machines: each shard in a session of its own, then ``merge`` and ``judge`` on what they leave.

RECIPES = ("te-current", "te-block", "bf16")


@pytest.fixture(scope="module")
def shards(project, tmp_path_factory) -> list[Path]:
    """The records folders of two shards, the second one numbered by a scheduler."""
    folders = [tmp_path_factory.mktemp("shard") / "records" for _ in range(2)]
    first = gate(project, folders[0], "--parity-shard", "1/2", recipes=RECIPES)
    scheduler = {"BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "2"}
    done = gate(project, folders[1], "--parity-shard", "auto", recipes=RECIPES, **scheduler)
    assert (first.returncode, done.returncode) == (0, 0), first.stdout + done.stdout
    return folders


def split_of(folder: Path) -> str:
    return some(only(folder).shard).split


def test_manifest_of_a_shard_has_its_index(shards):
    found = [only(folder).shard for folder in shards]
    assert found == [Shard(index=i, count=2, split=split_of(shards[0])) for i in (1, 2)]
    assert len(split_of(shards[0])) == 64
    ran = [[s.test for s in only(folder).selected if s.outcome == "passed"] for folder in shards]
    assert len(ran[0]) + len(ran[1]) == 5  # codes does not run for BF16
    assert min(map(len, ran)) == 2


def test_merged_shards_are_accepted(shards, tmp_path, capsys):
    out = tmp_path / "all.zip"
    assert main(["merge", str(out), *map(str, shards)]) == 0
    assert "5 records of 1 environment, from 2 sets" in capsys.readouterr().out
    assert judged(out) == 0
    assert "Accept" in capsys.readouterr().out


def test_missing_shard_is_refused(shards, tmp_path, capsys):
    out = tmp_path / "part.zip"
    assert main(["merge", str(out), str(shards[1])]) == 1
    words = f"shard 1 of 2 is missing, and shard 2 is here (split {split_of(shards[1])[:8]})"
    assert f"{out}: {words}" in capsys.readouterr().out
    assert judged(out) == 1
    told = capsys.readouterr().out
    assert words in told
    assert "Refuse" in told


def test_more_shards_than_tests_are_wrong_usage(project, tmp_path):
    done = gate(project, tmp_path, "--parity-shard", "1/60", recipes=RECIPES)
    assert done.returncode == 4
    assert "--parity-shard 1 of 60: 5 tests can run; use at most that number of shards" in done.stderr + done.stdout


SUITE = """
def test_codes(recipe_cell, parity):
    parity.numerics("codes", recipe_cell)


def test_large(recipe_cell, parity):
    parity.numerics("large", recipe_cell)
"""


@pytest.mark.parametrize("more", [(), ("-n", "1"), ("--release",)], ids=str)
def test_gate_says_what_release_adds(more, tmp_path):
    (tmp_path / "suites" / "numerics").mkdir(parents=True)
    (tmp_path / "suites" / "numerics" / "test_mine.py").write_text(SUITE)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("fp8parity.gate.plugin",)\n')
    terms = ("--recipe", "te-current", "--execution", "emulated", "--golden-dir", str(ROOT / "golden"), "-v")
    records = tmp_path / "records"
    done = run("pytest", "suites", *terms, *more, "--parity-records", str(records), cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    daily = more in ((), ("-n", "1"))
    assert ("--release adds 1 check: large (1 test)" in done.stdout) == daily
    assert ("test_large[te-current-emulated]" in done.stdout) == ("--release" in more)
    assert only(records).left_out == ["large"] * daily


def test_shard_without_a_possible_recipe_is_red(project, tmp_path):
    done = gate(project, tmp_path, "--execution", "fused", "--parity-shard", "1/1", recipes=RECIPES)
    assert done.returncode == 1, done.stdout
    assert "but only the BF16 control was checked and no recipe: " in done.stdout
