"""A task of two ranks: trace sound steps, then steps with a fault on rank 1 alone, or in what both ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from faults import moments, places
from faults.plants import Plant
from fp8parity.checks.protocol import Result, numbers_of
from fp8parity.distributed import sharding
from fp8parity.numerics import emulation
from fp8parity.recipes import RECIPES
from fp8parity_lab.tracing import ranks
from fp8parity_lab.tracing.ranks import TraceSpec
from torch import nn
from traced import ARM, MOMENTS, OUT, UP

SOUND = ("te-delayed", "te-current", "te-block", "te-mxfp8", "te-nvfp4", "ao-tensorwise", "ao-rowwise")
"""Each is two sound steps: one of each rank, with batches of their own."""


@dataclass(frozen=True)
class RankFault:
    """A fault, the operation that a trace must name, and the ranks that show it. ``shared``: both ranks have it."""

    plant: Plant
    first: str
    recipe: str = "te-current"
    ranks: tuple[int, ...] = (1,)
    shared: bool = False


def changed(change: places.Change) -> Plant:
    return places.converted(change, sharding)


def not_causal(model: nn.Module) -> None:
    attention: Any = model.get_submodule("layers.0.attention")
    attention.attend = lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def once_sharded(change: Callable[[Any], object]) -> Plant:
    """The model is changed after FSDP2 has sharded it."""
    real = sharding.shard

    def shard(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        change(made.model)
        return made

    return lambda patch: patch.setattr(ranks, "shard", shard)


def summed(model: Any) -> None:
    """Gradients are added over ranks, not averaged."""
    units: list[Any] = [*sharding.units(model)]
    for unit in units:
        unit.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction with a factor
        unit.set_gradient_divide_factor(1.0)


@torch.no_grad()
def wrong_part(model: nn.Module) -> None:
    """The part of a weight that this rank sends is 1% large."""
    sharding.local(model.get_parameter(f"{UP}.weight").detach()).mul_(1.01)


FAULTS = {
    "E5M2": RankFault(changed(moments.other(UP, "fprop_x", "wgrad_x", format="e5m2")), f"fprop of {UP}"),
    "not quantized": RankFault(changed(places.not_quantized(OUT)), f"fprop of {OUT}"),
    "a norm": RankFault(changed(lambda m: setattr(m.get_submodule("norm"), "eps", 1e-2)), "output of norm"),
    "a mask": RankFault(changed(not_causal), ARM["mask off by one"]),
    "an amax": RankFault(
        changed(moments.at(UP, lambda linear: moments.frozen(linear, "dy"))),
        MOMENTS["amax of one gradient not recorded"],
        "te-delayed",
    ),
    "a part of a weight": RankFault(once_sharded(wrong_part), f"weight of {UP}", ranks=(0, 1)),
    "a sum for a mean": RankFault(
        once_sharded(summed), "reduced gradient of weight of lm_head", ranks=(0, 1), shared=True
    ),
}


def measure(spec: TraceSpec) -> Result:
    """Each note is the name of a trace and the operations over their budget."""
    emulation.compiles = lambda: False  # type: ignore[assignment]  # of this process
    notes = [_note(f"sound {recipe}", replace(spec, recipe=RECIPES[recipe])) for recipe in SOUND]
    for name, fault in FAULTS.items():
        with pytest.MonkeyPatch.context() as patch:
            if fault.shared or dist.get_rank() == 1:
                fault.plant(patch)
            notes.append(_note(name, replace(spec, recipe=RECIPES[fault.recipe])))
    return numbers_of("traces", {"all": len(notes)}), notes


def _note(name: str, spec: TraceSpec) -> str:
    found = ranks.of_all(ranks.of_rank(spec))
    return "|".join([name, *(o.title for o in found.over), *found.unmatched, *(d.name for d in found.far)])
