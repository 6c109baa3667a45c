"""Which records a session reuses instead of training: the content of a record decides, not its file name."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from fp8parity.recipes import get
from fp8parity.recipes.conversion import apply
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.storage import file_name, load_record, write_json
from fp8parity.runner import Settings
from fp8parity.training import loop, provenance
from fp8parity.training.step import MasterWeightOptimizer, cross_entropy
from fp8parity.training.variants import FAULTS, Parts, Variant, replica
from fp8parity.workload import models
from narrowed import load_trajectory
from sessions import Session, cell

BF16, CURRENT = cell("bf16", "native", "nano"), cell("te-current", "emulated", "nano")


@pytest.fixture
def trained(monkeypatch) -> list[tuple[str, int]]:
    """The runs that were trained, in order. A clean tree, whatever the developer's tree is."""
    monkeypatch.setattr(provenance, "tree", lambda folder: provenance.Tree("abc", dirty=False))
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


@pytest.fixture
def parts(session: Session) -> Parts:
    preset = session.preset("nano")
    model = models.build(preset.model, 0)
    converted = apply(model, get("bf16"), Execution.NATIVE, tokens=preset.schedule.tokens)
    return Parts(model, MasterWeightOptimizer(converted, preset.schedule), preset.schedule, cross_entropy)


def test_a_replica_changes_one_weight_by_one_ulp(parts: Parts):
    before = {n: p.detach().clone() for n, p in parts.model.named_parameters()}
    masters = [m.clone() for m in parts.optimizer.masters]
    replica(1).plant(parts)
    changed = {
        n: (p != before[n]).nonzero() for n, p in parts.model.named_parameters() if not torch.equal(p, before[n])
    }
    [(name, [place])] = changed.items()
    assert name.startswith("layers.")
    old, new = before[name][tuple(place)], parts.model.get_parameter(name)[tuple(place)]
    assert abs(int(old.view(torch.int16)) - int(new.view(torch.int16))) == 1
    assert sum(int((a != b).sum()) for a, b in zip(masters, parts.optimizer.masters, strict=True)) == 1


def test_replicas_of_other_numbers_change_other_weights(session: Session):
    first, second = (session.trajectory(BF16, 0, replica(k)) for k in (1, 2))
    plain = session.trajectory(BF16, 0)
    assert (plain.variant, plain.content, first.content) == ("", "seed0", "seed0-replica1")
    assert plain.initial_weights == first.initial_weights
    assert plain.spec_hash == first.spec_hash
    assert len({tuple(r.loss) for r in (plain, first, second)}) == 3
    assert max(abs(a / b - 1) for a, b in zip(plain.loss, first.loss, strict=True)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_each_fault_changes_the_losses_and_is_recorded(session: Session, fault: Variant):
    found, plain = session.trajectory(BF16, 0, fault), session.trajectory(BF16, 0)
    assert found.loss != plain.loss
    assert found.variant == fault.name
    assert found.content == f"seed0-{fault.name.replace(' ', '-')}"
