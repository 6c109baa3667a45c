"""Variants: each planted change does what it says, and nothing else."""

from __future__ import annotations

import pytest
import torch
from fp8parity.recipes import get
from fp8parity.recipes.conversion import apply
from fp8parity.records.cell import Execution, Mode
from fp8parity.training.step import MasterWeightOptimizer, cross_entropy, make, update
from fp8parity.training.variants import FAULTS, Parts, Variant, replica
from fp8parity.workload import models
from sessions import Session, cell

BY_NAME = {f.name: f for f in FAULTS}
BF16 = cell("bf16", "native", "nano")


@pytest.fixture
def parts(session: Session) -> Parts:
    preset = session.preset("nano")
    model = models.build(preset.model, 0)
    converted = apply(model, get("bf16"), Execution.NATIVE, tokens=preset.schedule.tokens)
    return Parts(model, MasterWeightOptimizer(converted, preset.schedule), preset.schedule, cross_entropy)


def batch(parts: Parts) -> tuple[torch.Tensor, torch.Tensor]:
    ids = (torch.arange(2 * 65) * 37 % 251).view(2, 65)
    return ids[:, :-1], ids[:, 1:]


def gradients(parts: Parts) -> dict[str, torch.Tensor]:
    parts.loss(parts.model, *batch(parts)).backward()
    return {n: p.grad.clone() for n, p in parts.model.named_parameters() if p.grad is not None}


def outputs(parts: Parts, name: str) -> torch.Tensor:
    kept = []
    handle = parts.model.get_submodule(name).register_forward_hook(lambda _, args, y: kept.append((args[0], y)))
    parts.model(batch(parts)[0])
    handle.remove()
    given, got = kept[0]
    plain = torch.nn.functional.linear(given, parts.model.get_parameter(f"{name}.weight"))
    return torch.stack((plain, got))


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


@pytest.mark.parametrize(
    ("fault", "shifted"),
    [("outputs shifted", {"q_proj", "up_proj"}), ("one output shifted", {"up_proj"}), ("attention scaled", set())],
)
def test_outputs_are_shifted_or_scaled(parts: Parts, fault: str, shifted: set[str]):
    BY_NAME[fault].plant(parts)
    for name in ("attention.q_proj", "mlp.up_proj"):
        plain, got = outputs(parts, f"layers.0.{name}")
        expected = plain.roll(1, -2) if name.rpartition(".")[2] in shifted else plain
        scale = 1.1 if (fault, name) == ("attention scaled", "attention.q_proj") else 1
        torch.testing.assert_close(got, (expected * scale).to(got.dtype))


def test_attention_without_self_ignores_its_own_position(parts: Parts):
    q, k, v = (torch.randn(1, 2, 8, 16) for _ in range(3))
    BY_NAME["attention without self"].plant(parts)
    attention = parts.model.get_submodule("layers.0.attention")
    assert isinstance(attention, models.Attention)
    attend = attention.attend
    before, own = attend(q, k, v), v.clone()
    own[:, :, 5] += 100
    after = attend(q, k, own)
    assert torch.equal(before[:, :, :6], after[:, :, :6])
    assert not torch.allclose(before[:, :, 6], after[:, :, 6])
    torch.testing.assert_close(attend(q, k, v)[:, :, 0], v[:, :, 0])


def test_attention_without_positions_ignores_the_order(parts: Parts):
    """Without RoPE, the output of the last position does not change if two earlier tokens trade places."""
    ids, swapped = (torch.tensor([row]) for row in ([3, 5, 7, 9], [5, 3, 7, 9]))
    assert not torch.allclose(parts.model(ids)[0, -1], parts.model(swapped)[0, -1])
    BY_NAME["attention without positions"].plant(parts)
    torch.testing.assert_close(parts.model(ids)[0, -1], parts.model(swapped)[0, -1], atol=2e-2, rtol=0)


def changes_of(
    session: Session, parts: Parts, name: str
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], set[str]]:
    """Return the gradients without and with a fault, and the names of the changed ones."""
    fresh = models.build(session.preset("nano").model, 0)
    optimizer = MasterWeightOptimizer(apply(fresh, get("bf16"), Execution.NATIVE, tokens=128), parts.schedule)
    plain = gradients(parts)
    found = gradients(BY_NAME[name].plant(Parts(fresh, optimizer, parts.schedule, cross_entropy)))
    return plain, found, {n for n in plain if not torch.equal(plain[n], found[n])}


def test_small_gradients_are_zero(session: Session, parts: Parts):
    plain, found, _ = changes_of(session, parts, "small gradients flushed")
    kept = plain["lm_head.weight"].abs() >= plain["lm_head.weight"].abs().amax() / 64
    assert torch.equal(found["lm_head.weight"] != 0, kept & (plain["lm_head.weight"] != 0))


def test_half_of_the_embedding_gradient_is_flipped(session: Session, parts: Parts):
    plain, found, changed = changes_of(session, parts, "embedding gradient flipped")
    assert changed == {"embedding.weight"}
    assert torch.equal(found["embedding.weight"][:, ::2], -plain["embedding.weight"][:, ::2])
    assert torch.equal(found["embedding.weight"][:, 1::2], plain["embedding.weight"][:, 1::2])


def test_one_layer_is_not_updated(session: Session, parts: Parts):
    _, found, changed = changes_of(session, parts, "layer not updated")
    assert changed == {"layers.0.mlp.up_proj.weight"} and not found["layers.0.mlp.up_proj.weight"].any()


def test_stale_weights_lag_one_step(parts: Parts):
    BY_NAME["weights stale"].plant(parts)
    converted = apply(parts.model, get("bf16"), Execution.NATIVE, tokens=128)
    before = [m.clone() for m in parts.optimizer.masters]
    update(converted, parts.optimizer, parts.schedule, [batch(parts)])
    for old, parameter, master in zip(before, parts.optimizer.params, parts.optimizer.masters, strict=True):
        assert torch.equal(parameter.float(), old.to(torch.bfloat16).float())
        assert not torch.equal(master, old)


def test_the_learning_rate_is_3_percent_high(parts: Parts):
    planted = BY_NAME["learning rate high"].plant(parts)
    take = make(
        apply(parts.model, get("bf16"), Execution.NATIVE, tokens=128), parts.optimizer, planted.schedule, Mode.EAGER
    )
    take([batch(parts)], 1)
    assert parts.optimizer.adamw.param_groups[0]["lr"] == pytest.approx(1.03 * parts.schedule.lr_at(1))


def test_the_loss_is_in_bf16(parts: Parts):
    exact = float(parts.loss(parts.model, *batch(parts)).detach())
    rounded = float(BY_NAME["loss in BF16"].plant(parts).loss(parts.model, *batch(parts)).detach())
    assert rounded != exact
    assert rounded == pytest.approx(exact, rel=2**-7)
    assert rounded == float(torch.tensor(rounded).bfloat16())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_each_fault_changes_the_losses_and_is_recorded(session: Session, fault: Variant):
    found, plain = session.trajectory(BF16, 0, fault), session.trajectory(BF16, 0)
    assert found.loss != plain.loss
    assert found.variant == fault.name
    assert found.content == f"seed0-{fault.name.replace(' ', '-')}"
