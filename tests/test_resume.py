"""Which records a session reuses instead of training: the content of a record decides, not its file name."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
from fp8parity.records.cell import Cell
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
    """Return another session on the same folder."""
    return Session(Settings(session.settings.records, resume=resume), session.hardware, name, session.presets)


def path_of(session: Session, of: Cell, name: str) -> Path:
    return session.settings.records / file_name(of, name)


def changed(path: Path, **changes: object) -> None:
    """Write the record again with other fields: a whole file with a right checksum."""
    write_json(path, load_trajectory(path).model_copy(update=changes))


def test_a_finished_record_is_reused(session, trained):
    first = session.trajectory(BF16, 0)
    assert resumed(session).trajectory(BF16, 0) == first
    assert trained == [("bf16", 0)]
    assert resumed(session, resume=False).trajectory(BF16, 0).loss == first.loss
    assert trained == [("bf16", 0)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "seed", "variant"),
    [(CURRENT, 0, None), (BF16, 1, None), (BF16, 0, replica(1))],
    ids=["another recipe", "another seed", "another variant"],
)
def test_a_copied_record_is_trained_again(session, trained, of, seed, variant):
    """Planted: BF16's record of seed 0 under the name of the record that is asked for."""
    session.trajectory(BF16, 0)
    wanted = path_of(session, of, f"seed{seed}" + (f"-{variant.name}" if variant else ""))
    shutil.copy(path_of(session, BF16, "seed0"), wanted)
    with pytest.warns(UserWarning, match="holds bf16-nano-native seed0, .* it is trained again"):
        found = resumed(session).trajectory(of, seed, variant)
    assert (found.cell, found.seed, found.variant) == (of, seed, variant.name if variant else "")
    assert trained[1:] == [(of.recipe, seed)] and load_record(wanted) == found


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [lambda t: t[: len(t) // 2], lambda t: t.replace('"seed": 0', '"seed": 7'), lambda t: ""]
)
def test_a_damaged_record_is_trained_again(session, trained, damage):
    session.trajectory(BF16, 0)
    path = path_of(session, BF16, "seed0")
    path.write_text(damage(path.read_text()))
    with pytest.warns(UserWarning, match=rf"{path.name}.*it is trained again$"):
        found = resumed(session).trajectory(BF16, 0)
    assert trained == [("bf16", 0)] * 2 and load_record(path) == found


def test_a_record_of_an_uncommitted_tree_is_not_reused(session, trained):
    session.trajectory(BF16, 0)
    path = path_of(session, BF16, "seed0")
    source = load_trajectory(path).provenance
    changed(path, provenance=source.model_copy(update={"dirty": True}))
    resumed(session).trajectory(BF16, 0)
    assert trained == [("bf16", 0)] * 2


def test_a_record_of_another_corpus_is_not_reused(session, trained):
    session.trajectory(BF16, 0)
    changed(path_of(session, BF16, "seed0"), cell=BF16.on("synthetic"))
    with pytest.warns(UserWarning, match="it is trained again"):
        assert resumed(session).trajectory(BF16, 0).cell == BF16
    assert len(trained) == 2
