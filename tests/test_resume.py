"""Which records a session takes over instead of training: the content of a record decides, not the name of its file."""

from __future__ import annotations

import dataclasses
import re
import shutil
import warnings
from pathlib import Path

import pytest
from fp8parity.records.cell import Cell
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import file_name, load_record, write_json
from fp8parity.runner import Settings
from fp8parity.training import loop, provenance
from fp8parity.training.variants import replica
from narrowed import load_trajectory
from sessions import Session, cell

BF16, CURRENT = cell("bf16", "native", "nano"), cell("te-current", "emulated", "nano")


@pytest.fixture
def trained(monkeypatch) -> list[tuple[str, int]]:
    """The runs that were trained, in order. A clean tree, whatever the developer's tree is."""
    monkeypatch.setattr(provenance, "commit", lambda: ("abc", False))
    runs: list[tuple[str, int]] = []
    train = loop.train

    def counted(model, recipe, execution, schedule, stream, seed, **more):
        runs.append((recipe.name, seed))
        return train(model, recipe, execution, dataclasses.replace(schedule), stream, seed, **more)

    monkeypatch.setattr(loop, "train", counted)
    return runs


def resumed(session: Session, name: str = "another", resume: bool = True) -> Session:
    return Session(
        Settings(session.settings.records, resume=resume), session.hardware, name, session.presets
    )  # another session on the same folder


def path_of(session: Session, of: Cell, name: str) -> Path:
    return session.settings.records / file_name(of, name)


def ours(said: pytest.WarningsRecorder) -> list[str]:
    """The texts of the runner's warnings. torch has warnings of its own."""
    return [str(w.message) for w in said if w.category is UserWarning]


def changed(path: Path, **changes: object) -> None:
    """Write the record again with other fields: a whole file with a right checksum."""
    write_json(path, load_trajectory(path).model_copy(update=changes))


def test_a_finished_record_of_the_same_make_is_taken_over(session, trained):
    first = session.trajectory(BF16, 0)
    assert resumed(session).trajectory(BF16, 0) == first
    assert trained == [("bf16", 0)]
    assert resumed(session, resume=False).trajectory(BF16, 0).loss == first.loss
    assert trained == [("bf16", 0)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "seed", "variant", "words"),
    [
        (CURRENT, 0, None, "holds bf16-nano-native seed0"),
        (BF16, 1, None, "holds bf16-nano-native seed0"),
        (BF16, 0, replica(1), "holds bf16-nano-native seed0"),
    ],
    ids=["another recipe", "another seed", "another variant"],
)
def test_a_copied_record_is_trained_again(session, trained, of, seed, variant, words):
    """Planted: BF16's record of seed 0 under the name of the record that is asked for."""
    session.trajectory(BF16, 0)
    wanted = path_of(session, of, f"seed{seed}" + (f"-{variant.name.replace(' ', '-')}" if variant else ""))
    shutil.copy(path_of(session, BF16, "seed0"), wanted)
    with pytest.warns(UserWarning, match="it is trained again") as said:
        found = resumed(session).trajectory(of, seed, variant)
    [text] = ours(said)
    assert words in text
    assert "it is trained again" in text
    assert (found.cell, found.seed, found.variant) == (of, seed, variant.name if variant else "")
    assert trained[1:] == [(of.recipe, seed)]
    assert load_record(wanted) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda t: t[: len(t) // 2], lambda t: t.replace('"seed": 0', '"seed": 7'), lambda t: ""]
)
def test_a_damaged_record_is_trained_again_and_one_line_says_so(session, trained, damage):
    session.trajectory(BF16, 0)
    path = path_of(session, BF16, "seed0")
    whole = path.read_text()
    path.write_text(damage(whole))
    with pytest.warns(UserWarning, match="it is trained again") as said:
        found = resumed(session).trajectory(BF16, 0)
    [text] = ours(said)
    assert re.search(rf"{path.name}.*it is trained again$", text)
    assert "\n" not in text
    assert trained == [("bf16", 0)] * 2
    assert load_record(path) == found


def dirty(made: Provenance) -> Provenance:
    return made.model_copy(update={"dirty": True})


def test_a_record_of_an_uncommitted_tree_is_not_taken_over(session, trained):
    session.trajectory(BF16, 0)
    path = path_of(session, BF16, "seed0")
    changed(path, provenance=dirty(load_trajectory(path).provenance))
    resumed(session).trajectory(BF16, 0)
    assert trained == [("bf16", 0)] * 2


def test_a_session_in_an_uncommitted_tree_takes_nothing_over_but_its_own(session, trained, monkeypatch):
    session.trajectory(BF16, 0)
    monkeypatch.setattr(provenance, "commit", lambda: ("abc", True))
    later = resumed(session)
    made = later.trajectory(BF16, 0)
    assert trained == [("bf16", 0)] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert later.trajectory(BF16, 0) == made
    assert trained == [("bf16", 0)] * 2


def test_a_record_of_another_corpus_is_not_taken_over(session, trained):
    session.trajectory(BF16, 0)
    changed(path_of(session, BF16, "seed0"), cell=BF16.on("synthetic"))
    with pytest.warns(UserWarning, match="it is trained again"):
        found = resumed(session).trajectory(BF16, 0)
    assert isinstance(found, Trajectory)
    assert found.cell == BF16
    assert len(trained) == 2
