"""What one session makes up for another: only the same question, on the same machine. `judge` refuses a set that lost any of it."""

from __future__ import annotations

import pytest
from fp8parity.judging.completeness import doubts, missing
from fp8parity.records.manifest import Manifest, Selected
from test_completeness import golden, judged, made_by, note, put, runs

__all__ = ["golden", "runs"]  # fixtures

OWN = ["--parity-corpus", "text:own.txt"]
TOPICS = ["--parity-corpus", "topics"]


def killed(made: Manifest, *options: str) -> Manifest:
    """Another session with the tests of ``made``, that was killed before the first."""
    none = [Selected(cell=s.cell, test=s.test) for s in made.selected]
    changes = {
        "session": "t",
        "started": "b",
        "status": "killed, or still running",
        "options": [*options],
        "selected": none,
    }
    return made.model_copy(update=changes)


def asked(made: Manifest, *options: str, **changes: object) -> Manifest:
    return made.model_copy(update={"options": [*options], **changes})


def test_a_session_killed_on_another_corpus_is_red(trajectory, runs, golden, tmp_path, capsys):
    made = note(trajectory, runs)
    assert judged(put(tmp_path / "same", runs, made, killed(made)), golden) == 0
    capsys.readouterr()
    assert judged(put(tmp_path / "other", runs, made, killed(made, *OWN)), golden) == 1
    assert "session t selected te-current-nano-emulated test_loss (it was not run)" in capsys.readouterr().out


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
    unrun = here.model_copy(update={"selected": [Selected(cell=run.cell.id, test="test_loss")]})
    assert len(missing([unrun, elsewhere], [there])) == 1
    assert doubts([elsewhere], [there]) == []
