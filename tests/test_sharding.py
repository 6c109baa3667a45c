"""What the optimizer of sharded weights writes to, in a process group of one rank."""

from __future__ import annotations

import torch
from fp8parity.distributed.arms import ARMS
from fp8parity.distributed.sharding import ShardedOptimizer, sharded
from sessions import cell

NAME = "amax_reduction_group"


def test_the_optimizer_writes_to_the_very_tensors_that_fsdp_gathers(session, one_rank):
    """What FSDP2's all-gather sets on a weight (Transformer Engine's group of its amax) must still be there when it is updated."""
    spec = session.spec(cell("bf16", "native", "nano"))
    schedule = session.preset("nano").schedule
    optimizer = ShardedOptimizer(sharded(spec, spec.model, schedule, ARMS[0], 0), schedule)
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
