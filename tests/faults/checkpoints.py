"""Faults of checkpoints: what is saved, what is read from the file, and what a new model makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fp8parity.checks import checkpoint
from fp8parity.checks.checkpoint import PLAIN, QUANTIZED, exact
from fp8parity.numerics.quantized_weights import QuantizedWeight

from faults import state
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Measured
from faults.plants import Plant


def loaded(change: Callable[[dict[str, Any]], object]) -> Plant:
    """What is read from the file is changed before it is loaded."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = checkpoint.restore

        def restore(converted: Any, optimizer: Any, saved: dict[str, Any]) -> None:
            change(saved)
            real(converted, optimizer, saved)

        patch.setattr(checkpoint, "restore", restore)

    return plant


def scales_in_bf16(saved: dict[str, Any]) -> None:
    for weight in saved["model"].values():
        if isinstance(weight, QuantizedWeight):
            weight._scale_inv = weight._scale_inv.bfloat16().float()


def masters_from_weights(saved: dict[str, Any]) -> None:
    saved["masters"] = {n: exact(saved["model"][n]).bfloat16().float() for n in saved["masters"]}


def moments_of_a_new_run(saved: dict[str, Any]) -> None:
    for made in saved["optimizer"]:
        made["state"] = {}


def generator_of_a_new_run(saved: dict[str, Any]) -> None:
    saved["generators"]["recipe"] = torch.Generator().manual_seed(0).get_state()


def _fault(
    plant: Plant, recipe: str, place: str, *also: str, where: str = PLAIN, source: str = "made up", cause: str = ""
) -> Fault:
    """``also``: further metrics that must be wrong."""
    blame = Blame.FRAMEWORK if recipe == "bf16" else Blame.RECIPE
    words = tuple(f"{metric} @ {where}" for metric in also) or ""
    finding = Finding(Measured("checkpoint", recipe), f"{place} @ {where}", blame, cause=cause, words=words)
    return Fault(Kind.STATE, plant, (finding,), source)


FAULTS = {
    "amax history not saved": _fault(
        state.not_saved, "te-delayed", "changed scales", "step difference", source="TE 567, 982"
    ),
    "amax history not loaded": Fault(
        Kind.STATE, state.not_loaded, state.state("te-delayed", "reload difference"), "TE 567, 982"
    ),
    "scale of a primary weight saved in BF16": _fault(
        loaded(scales_in_bf16),
        "te-current",
        "changed weights",
        "step difference",
        where=QUANTIZED,
        source="TE's test of sharded checkpoints allows for it",
    ),
    "master weights made from BF16 ones": _fault(
        loaded(masters_from_weights),
        "bf16",
        "changed masters",
        "step difference",
        cause="masters do not come back from the checkpoint to the bit",
    ),
    "moments not loaded": _fault(loaded(moments_of_a_new_run), "bf16", "changed moments", "highest gain of the step"),
    "generator of stochastic rounding not loaded": _fault(
        loaded(generator_of_a_new_run), "te-nvfp4", "step difference"
    ),
}
