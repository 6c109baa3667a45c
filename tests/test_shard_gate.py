"""A gate that is split over machines: each shard in a process of its own, then ``merge`` and ``judge`` on what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.records import manifest
from fp8parity.records.manifest import Manifest, Shard
from narrowed import some
from processes import Done, run
from projects import ROOT, make

pytestmark = pytest.mark.slow
GATE = ("suites/numerics", "-k", "gemm or codes", "--execution", "emulated", "--golden-dir", str(ROOT / "golden"))
RECIPES = ("te-current", "te-block", "bf16")


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("project"))


def gate(project: Path, *more: str, **variables: str) -> Done:
    recipes = [part for name in RECIPES for part in ("--recipe", name)]
    return run("pytest", *GATE, *recipes, *more, cwd=project, **variables)


@pytest.fixture(scope="module")
def shards(project, tmp_path_factory) -> list[Path]:
    """The records folders of two shards, the second one numbered by a scheduler."""
    folders = [tmp_path_factory.mktemp("shard") / "records" for _ in range(2)]
    first = gate(project, "--parity-shard", "1/2", "--parity-records", str(folders[0]))
    second = ("--parity-shard", "auto", "--parity-records", str(folders[1]))
    done = gate(project, *second, BUILDKITE_PARALLEL_JOB="1", BUILDKITE_PARALLEL_JOB_COUNT="2")
    assert (first.returncode, done.returncode) == (0, 0), first.stdout + done.stdout
    return folders


def noted(folder: Path) -> Manifest:
    [found] = manifest.load([folder])
    return found


def split_of(folder: Path) -> str:
    return some(noted(folder).shard).split


def test_manifest_of_a_shard_has_its_index(shards):
    found = [noted(folder).shard for folder in shards]
    assert found == [Shard(index=i, count=2, split=split_of(shards[0])) for i in (1, 2)]
    assert len(split_of(shards[0])) == 64
    ran = [[s.test for s in noted(folder).selected if s.outcome == "passed"] for folder in shards]
    assert len(ran[0]) + len(ran[1]) == 5  # codes does not run for BF16
    assert min(map(len, ran)) == 2


def judged(path: Path) -> int:
    return main(["judge", str(path), "--golden-dir", str(ROOT / "golden")])


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--parity-shard", "3/2"), "--parity-shard 3/2: shard 3 of 2 does not exist; shards are counted from 1"),
        (("--parity-shard", "auto"), "--parity-shard auto: none of these variables is set"),
        (("--parity-shard", "1/60"), "--parity-shard 1 of 60: 5 tests can run; use at most that number of shards"),
    ],
)
def test_impossible_shard_is_wrong_usage(project, options, words):
    done = gate(project, *options)
    assert done.returncode == 4
    assert words in done.stderr + done.stdout
