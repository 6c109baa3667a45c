"""The check ``tensor parallel`` in this process, with one rank: a value that is not finite is named with its step and place."""

from __future__ import annotations

import pytest
import torch
from fp8parity.distributed import parity, train
from fp8parity.distributed.sharding import ARMS, ShardedOptimizer, sharded
from fp8parity.training.optimizer import MasterWeightOptimizer
from sessions import cell


@pytest.fixture
def spec(session, one_rank):
    return session.spec(cell("bf16", "native", "nano"))


def planted(monkeypatch, change):
    """``change(model)`` once the linears are split, so that the run on one rank stays sound."""
    real = parity.split

    def split(model, spec):
        real(model, spec)
        change(model)

    monkeypatch.setattr(parity, "split", split)


def test_one_rank_is_the_whole_model(spec):
    found = {m.metric: m.value for m in parity.measure_tensor_parallel(spec)[0]}
    assert (found["largest gap"], found["tail gap"], found["tensors that differ between ranks"]) == (0.0, 0.0, 0.0)
    assert found["first gradient norm"] == pytest.approx(1.0, abs=1e-5)


def test_loss_that_is_not_finite_names_its_rank(spec, monkeypatch):
    def nan_later(model):
        real, calls = model.forward, iter(range(100))
        model.forward = lambda ids: real(ids) * (float("nan") if next(calls) == 2 * train.SHARE else 1.0)

    planted(monkeypatch, nan_later)
    with pytest.raises(ValueError, match=r"^the loss of step 2 is not finite on rank 0 \(nan\)$"):
        parity.measure_tensor_parallel(spec)


def test_gradient_that_is_not_finite_names_its_parameter(spec, monkeypatch):
    planted(monkeypatch, lambda model: model.lm_head.weight.register_hook(lambda grad: grad * float("nan")))
    with pytest.raises(
        ValueError, match=r"^step 0 is not finite, and the loss of every rank is: gradient of lm_head.weight \(1 of "
    ):
        parity.measure_tensor_parallel(spec)


def test_run_on_one_rank_that_is_not_finite_is_no_reference(spec, monkeypatch):
    real = MasterWeightOptimizer.gather
    monkeypatch.setattr(MasterWeightOptimizer, "gather", lambda self, factor: real(self, float("nan")))
    with pytest.raises(ValueError, match="^the run on one rank is not finite at step 0: gradient of "):
        parity.measure_tensor_parallel(spec)


NAME = "amax_reduction_group"


def test_optimizer_writes_to_the_tensors_of_fsdp(session, one_rank):
    """What FSDP2's all-gather sets on a weight (Transformer Engine's group of its amax) must still be there when it is updated."""
    spec = session.spec(cell("bf16", "native", "nano"))
    schedule = session.preset("nano").schedule
    optimizer = ShardedOptimizer(sharded(spec, schedule, ARMS[0], 0), schedule)
    gathered = [p._local_tensor for p in optimizer.params]
    for number, tensor in enumerate(gathered):
        setattr(tensor, NAME, number)
    with torch.no_grad():
        written = [optimizer.local(p) for p in optimizer.params]
    assert len(written) > 5
    assert [getattr(t, NAME) for t in written] == list(range(len(gathered)))
    before = [t.clone() for t in gathered]
    for p in optimizer.params:
        p.grad = torch.ones_like(p)
    optimizer.zero()
    optimizer.gather(1.0)
    optimizer.set_lr(0.1)
    optimizer.step(1.0)
    assert not any(torch.equal(a, b) for a, b in zip(before, gathered, strict=True))
