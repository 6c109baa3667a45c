"""Variants: each planted change does what it says, and nothing else."""

from __future__ import annotations

import pytest
import torch
from fp8parity.recipes import get
from fp8parity.recipes.conversion import apply
from fp8parity.records.cell import Execution
from fp8parity.training.step import MasterWeightOptimizer, cross_entropy
from fp8parity.training.variants import FAULTS, Parts, Variant, replica
from fp8parity.workload import models
from sessions import Session, cell

BF16 = cell("bf16", "native", "nano")


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


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_each_fault_changes_the_losses_and_is_recorded(session: Session, fault: Variant):
    found, plain = session.trajectory(BF16, 0, fault), session.trajectory(BF16, 0)
    assert found.loss != plain.loss
    assert found.variant == fault.name
    assert found.content == f"seed0-{fault.name.replace(' ', '-')}"
