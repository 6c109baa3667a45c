"""Programs of ranks with a planted fault. ``launch(..., program=...)`` starts ``rank_faults`` in place of the real one.

FP8PARITY_PLANT names the fault. Each is planted on rank 1, in its second step or in what it says of itself. Tasks that measure several
faults in one launch (``rank_tasks``) plant one, measure, and mend.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fp8parity.checks.protocol import Result, RunSpec
from fp8parity.distributed import checkpoint, exchange, parity, sharding, train, worker
from fp8parity.distributed.sharding import ARMS, Arm, ShardedOptimizer, local
from fp8parity.distributed.train import Together, alone
from torch import Tensor

RANK = int(os.environ.get("RANK", "0"))
AT = 1
"""The step of a fault."""


def first_arm(spec: RunSpec) -> Result:
    """The task of these programs: one arm, beside the work on one rank."""
    return parity.compared(Together(spec, ARMS[0]).run(), alone(spec), ARMS[0].name), []


PLANTED = pytest.MonkeyPatch()
"""The plants of this rank. ``PLANTED.undo()`` mends them."""


def in_step(change: Callable[[Any], None], rank: int = 1) -> None:
    """Call ``change`` on a rank before its second step."""
    real = Together.take

    def take(self: Any, batches: Any, number: int) -> Tensor:
        if number == AT and rank == RANK:
            change(self)
        return real(self, batches, number)

    PLANTED.setattr(Together, "take", take)


def hang(_: Any) -> None:
    time.sleep(600)


def lose_patience(_: Any) -> None:
    """Wait for a collective no longer than a second from now on. All that follow need rank 1, and all before have ended."""
    [watch] = [thread for thread in threading.enumerate() if isinstance(thread, worker.RankWatch)]
    assert watch.patience == 20
    watch.patience = 1


def hang_and_be_seen() -> None:
    """Rank 1 hangs, and rank 0 says so soon."""
    in_step(hang)
    in_step(lose_patience, rank=0)


def kill(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave(_: Any) -> None:
    raise ValueError("the disk of this rank is full")


def same_batches() -> None:
    """All ranks take the batches of rank 0."""
    real = train.dealt
    PLANTED.setattr(train, "dealt", lambda stream, rank, ranks: real(stream, 0, ranks))


def local_norm() -> None:
    """One norm's gradient stays that of its own rank: its part is not reduced."""
    real = ShardedOptimizer.gather

    def gather(self: Any, factor: float) -> None:
        name = self.names.index("layers.0.attention.q_proj.weight")
        self.params[name].grad.mul_(1 + RANK)
        real(self, factor)

    PLANTED.setattr(ShardedOptimizer, "gather", gather)


def summed() -> None:
    """Gradients are added over ranks, not averaged."""
    real = ShardedOptimizer.gather
    PLANTED.setattr(ShardedOptimizer, "gather", lambda self, factor: real(self, factor * 2))


def tables_cast() -> None:
    """FSDP casts every input of a block to BF16, the tables of RoPE too: its default."""
    real = sharding.MixedPrecisionPolicy
    PLANTED.setattr(sharding, "MixedPrecisionPolicy", lambda **given: real(**{**given, "cast_forward_inputs": True}))


def option_ignored() -> None:
    """The option of the FP8 all-gather is lost on the way."""
    PLANTED.setattr(Arm, "of", lambda self, recipe: recipe)


def precompute_forgotten() -> None:
    from fp8parity.recipes.adapters import torchao

    PLANTED.setattr(torchao, "precompute_scales", lambda model: None)


def scale_rounded() -> None:
    """Loaded weights are too large by the rounding of one scale in BF16."""
    real = checkpoint.ShardedRun.load

    def load(self: Any, folder: Path) -> None:
        real(self, folder)
        with torch.no_grad():
            local(next(self.model.parameters()).detach()).mul_(1 + 2**-9)

    PLANTED.setattr(checkpoint.ShardedRun, "load", load)


def optimizer_lost() -> None:
    """The moments of the optimizer are not loaded."""
    real = checkpoint.ShardedRun.load

    def load(self: Any, folder: Path) -> None:
        kept = {p: {k: v.clone() for k, v in s.items()} for p, s in self.adamw.state.items()}
        real(self, folder)
        self.adamw.state.update(kept)

    PLANTED.setattr(checkpoint.ShardedRun, "load", load)


def of_scales(name: str, change: Callable[..., Tensor]) -> Callable[[], None]:
    """``change`` a function of the exchange where it is given scales: they have fewer columns than tokens."""
    real = getattr(exchange, name)

    def wrong(part: Tensor, *at: Any, **more: Any) -> Tensor:
        return change(real, part, *at, **more) if part.shape[1] < exchange.K else real(part, *at, **more)

    return lambda: PLANTED.setattr(exchange, name, wrong)


PLANTS: dict[str, Callable[[], None]] = {
    "hang and be seen": hang_and_be_seen,
    "kill": lambda: in_step(kill),
    "leave": lambda: in_step(leave),
    "same batches": same_batches,
    "one gradient not reduced": local_norm,
    "summed": summed,
    "tables cast": tables_cast,
    "option ignored": option_ignored,
    "precompute forgotten": precompute_forgotten,
    "scale rounded": scale_rounded,
    "optimizer lost": optimizer_lost,
    "scales to the wrong rank": of_scales(
        "exchange", lambda real, part, sent, received: real(part.roll(sent[0], 0), sent, received)
    ),
    "scales not sent": of_scales("exchange", lambda real, part, sent, received: exchange.poisoned(part, sum(received))),
    "tokens permuted without scales": of_scales(
        "placed", lambda real, part, at, fill: real(part, replace(at, places=at.places.sort().values), fill)
    ),
    "scales of padding not written": of_scales(
        "placed", lambda real, part, at, fill: exchange.poisoned(part, at.rows).index_copy(0, at.places, part)
    ),
}

if __name__ == "__main__":
    PLANTS.get(os.environ["FP8PARITY_PLANT"], lambda: None)()
    raise SystemExit(worker.main(Path(sys.argv[1])))
