"""Who changed BF16, by evidence: packages, code of the user or of this project, settings, or nothing that is recorded."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import trajectories
import two_sides
from fp8parity.judging import loss
from fp8parity.judging.decide import Changed
from fp8parity.judging.evidence import NOTHING, ChangeEvidence
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.records.schema import TrainerRun
from fp8parity.training import provenance
from narrowed import some

TORCH = {"packages": {"torch": "1"}}
EDITED = {"dirty": True, "uncommitted": ["train.py"]}
HASHED = {"library": "l", "code": "a"}
MANY = {"dirty": True, "uncommitted": ["a.py", "b.py", "c.py", "d.py"]}
FRAMEWORK = "the framework changed, not the recipe"
OWN = "BF16 changed and no package did: your code did"
OURS = "BF16 changed and no package did: fp8-parity's code"


def blamed(old: dict[str, Any], new: dict[str, Any], own: bool) -> str:
    run = trajectories.made(bigram=0.0 if own else 1.0)
    before, after = (run.provenance.model_copy(update=changes) for changes in (old, new))
    return ChangeEvidence.of(before, run.model_copy(update={"provenance": after})).blame(Changed.FRAMEWORK)


@pytest.mark.parametrize(
    ("old", "new", "own", "text"),
    [
        ({}, TORCH, False, f"{FRAMEWORK}: torch 0 -> 1"),
        ({"packages": {"fp8-parity": "1"}}, {"packages": {"fp8-parity": "2"}}, True, "BF16 changed: fp8-parity 1 -> 2"),
        ({}, {"commit": "unknown", "dirty": True}, False, f"BF16 changed and {NOTHING}"),
        ({}, {"libraries": {"cuDNN": "9"}}, False, f"BF16 changed and {NOTHING}"),
        ({"libraries": {"cuDNN": "8"}}, {"libraries": {"cuDNN": "9"}}, False, f"{FRAMEWORK}: cuDNN 8 -> 9"),
        ({}, {"driver": "5"}, False, f"{FRAMEWORK}: driver - -> 5"),
        ({}, TORCH | EDITED, True, f"{FRAMEWORK}: torch 0 -> 1; your code differs, too: uncommitted changes in train.py"),
        ({}, {"device": "other"} | TORCH | EDITED, True, FRAMEWORK),
        ({}, {}, False, f"BF16 changed and {NOTHING}"),
        ({}, {"threads": 4}, False, "BF16 changed and no package did: threads 1 -> 4"),
        ({}, EDITED, True, f"{OWN} (uncommitted changes in train.py)"),
        ({}, MANY, True, f"{OWN} (uncommitted changes in a.py, b.py, c.py and 1 more)"),
        ({}, {"commit": "def"}, True, "BF16 changed and no package did: your code may have (commit abc -> def)"),
        ({}, {"commit": "unknown", "dirty": True}, True, "BF16 changed and no package did: your code may have (it is in no git repository)"),
        (HASHED, HASHED | {"commit": "def"}, True, f"BF16 changed and {NOTHING}"),
        (HASHED, HASHED | {"commit": "def", "code": "b"}, True, f"{OWN} (commit abc -> def)"),
        (HASHED, HASHED | EDITED | {"commit": "def", "code": "a+c"}, True, f"{OWN} (uncommitted changes in train.py)"),
        (HASHED, HASHED | {"library": "m"}, True, f"{OURS} did"),
        (HASHED, HASHED | EDITED | {"code": "a+c"}, False, f"BF16 changed and {NOTHING}"),
        (HASHED, {"library": "m", "dirty": True, "uncommitted": ["fixtures/fp8parity/a.py"]}, False, f"{OURS} did (uncommitted changes in fixtures/fp8parity/a.py)"),
        ({}, HASHED | {"commit": "def"}, False, f"{OURS} may have (commit abc -> def)"),
    ],
)  # fmt: skip
def test_what_differs_is_named(old, new, own, text):
    assert blamed(old, new, own) == text


RULES = Policy(
    path=Path("policy.toml"), loss=(LossRow(margin=0.005, seeds=(3,), min_loss_drop=0, why="a made-up row"),)
)
PROGRAM = TrainerRun(file="t.toml", command=["train"], status=0, output=[], log="log.jsonl")


def drifted(**fields: Any) -> str:
    """The message of a verdict on BF16 runs of edited code that left their golden."""
    golden = from_runs([trajectories.made(seed=s) for s in range(8)], [])
    edited = trajectories.PROVENANCE.model_copy(update=EDITED)
    runs = [trajectories.made("bf16", s, 0.02, provenance=edited, **fields) for s in range(3)]
    found = loss.judge(runs, runs, golden, RULES, MeasuredNumbers())
    assert (found.status, some(found.loss).blame) == ("drift", Changed.FRAMEWORK)
    return found.message()


@pytest.mark.parametrize("fields", [{"bigram": 0.0}, {"trainer": PROGRAM}], ids=["own model", "trainer"])
def test_edited_code_of_a_user_is_blamed_by_a_verdict(fields):
    message = drifted(**fields)
    assert message.count("BF16 changed and no package did: your code did (uncommitted changes in train.py)") == 2
    assert "the framework changed" not in message


def test_comparison_names_edited_code_from_both_sides(trajectory):
    own: dict[str, Any] = {"bigram": 0.0}
    old, new = two_sides.runs(trajectory, **own), two_sides.runs(trajectory, recipe=0.02, control=0.02, **own)
    new = [r.model_copy(update={"provenance": r.provenance.model_copy(update=EDITED)}) for r in new]
    for sides, when in (((old, new), ""), ((new, old), "earlier ")):
        sentence = two_sides.compared(*sides).sentence
        assert sentence.startswith("BF16 changed: bf16-nano-native loss ")
        assert sentence.endswith(f"; no package did: your code did ({when}uncommitted changes in train.py).")
    assert two_sides.compared(old, two_sides.runs(trajectory, control=0.02, **own)).sentence.endswith(f"; {NOTHING}.")


@pytest.fixture
def repository(tmp_path):
    """A repository with a program, and a function that runs git in it."""

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=tmp_path, check=True)

    def tree() -> provenance.Tree:
        provenance.tree.cache_clear()
        return provenance.tree(tmp_path)

    (tmp_path / "train.py").write_text("1")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "x")
    return tmp_path, git, tree


def test_tree_of_a_folder_names_its_changed_source(repository):
    folder, git, tree = repository
    clean = tree()
    assert (clean.dirty, clean.uncommitted) == (False, [])
    (folder / "golden").mkdir()
    for name in ("golden/loss.json", "notes.md", "out.json"):  # references and results are no code
        (folder / name).write_text("{}")
    results = tree()
    assert (results.dirty, results.uncommitted, results.code) == (True, [], clean.code)
    git("add", "golden", "notes.md")
    git("commit", "-qm", "golden")
    assert (tree().commit != clean.commit, tree().code) == (True, clean.code)
    (folder / "new.py").write_text("")
    (folder / "train.py").write_text("2")
    edited = tree()
    assert edited.uncommitted == ["train.py", "new.py"]
    assert edited.code.split("+")[0] == clean.code
    (folder / "train.py").write_text("3")
    assert tree().code != edited.code
    git("add", "train.py", "new.py")
    assert tree().uncommitted == ["new.py", "train.py"]
    git("commit", "-qm", "edit")
    assert "+" not in tree().code and tree().code != clean.code


def test_folder_outside_a_repository_has_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    provenance.tree.cache_clear()
    assert provenance.tree(tmp_path) == provenance.Tree("unknown", dirty=True)
