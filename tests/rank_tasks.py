"""Tasks of ranks that measure many things in one launch. To start the ranks takes ten seconds of processor time, most measurements one.

Each thing is named in the ``where`` of its numbers: "THING|WHERE". ``apart`` gives them back one by one.
"""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Callable
from dataclasses import replace

import rank_faults
import torch
from fp8parity.checks.protocol import Result, RunSpec
from fp8parity.distributed import checkpoint, exchange, launch, parity
from fp8parity.distributed.sharding import ARMS
from fp8parity.distributed.train import Together, alone
from fp8parity.recipes import RECIPES
from fp8parity.records.schema import Trajectory
from fp8parity.runner import numerics_check
from fp8parity.training.hardware import reset_state

if not torch.cuda.is_available() and importlib.util.find_spec("torchao.float8._inductor_patch"):
    # When torchao 0.18 converts a model, it repairs how Inductor writes kernels for Triton. For that it imports Inductor, a second of each
    # rank. A CPU has no Triton, and these tasks compile nothing.
    importlib.import_module("torchao.float8._inductor_patch")._PATCHED = True  # type: ignore[attr-defined]  # a module by its name

SOUND = ("sharded", "sharded checkpoint", "tensor parallel")
SHARDING = ("", "same batches", "one gradient not reduced", "summed", "tables cast")
CHECKPOINT = ("scale rounded", "optimizer lost")
EXCHANGE = (
    "scales to the wrong rank",
    "scales not sent",
    "tokens permuted without scales",
    "scales of padding not written",
)
EXCHANGED = ("ao-mxfp8", "ao-rowwise")
"""The recipes whose tokens are exchanged: with E8M0 and with FP32 scales."""
WIRE = ("", "option ignored", "precompute forgotten")


def bf16(spec: RunSpec) -> Result:
    """The sound checks, then one arm with each fault of the sharding, beside one run on one rank, then each fault of a checkpoint."""
    reference = alone(spec)  # no fault is planted in it
    found = {name: sound(spec, name, reference) for name in SOUND}

    def first_arm(spec: RunSpec) -> Result:
        return parity.compared(Together(spec, ARMS[0]).run(), reference, ARMS[0].name), []

    found |= {
        f"first arm, {fault}": faulty(spec, fault, first_arm) for fault in SHARDING[::-1]
    }  # the sound one last: all are mended
    found |= {f"checkpoint, {fault}": faulty(spec, fault, checkpoint.measure) for fault in CHECKPOINT}
    return together(found)


def torchao(spec: RunSpec) -> Result:
    """The sound checks, what the FP8 all-gather sends with each fault, and the exchange of tokens with each fault."""
    found = {name: sound(spec, name) for name in SOUND}
    found |= {f"wire, {fault}": faulty(spec, fault, gathered_in_fp8) for fault in WIRE[::-1]}
    for recipe in EXCHANGED:
        of = replace(spec, recipe=RECIPES[recipe])
        found |= {f"{recipe}, {fault}": faulty(of, fault, exchange.measure) for fault in ("", *EXCHANGE)}
    return together(found)


def sound(spec: RunSpec, name: str, reference: Trajectory | None = None) -> Result:
    """What a check measures, by its own entry. Its ranks are those that run already. ``reference`` is the run on one rank, if there is
    one: the same every time. Two ranks share two key heads."""
    reset_state()
    rank_faults.PLANTED.setattr(launch, "launch", lambda task, spec: pkgutil.resolve_name(task)(spec))
    if reference is not None and name != "tensor parallel":
        rank_faults.PLANTED.setattr(parity, "alone", lambda spec: reference)
    try:
        return numerics_check(name).measure(
            replace(spec, model=replace(spec.model, kv_heads=2)) if name == "tensor parallel" else spec
        )
    finally:
        rank_faults.PLANTED.undo()


def faulty(spec: RunSpec, fault: str, measure: Callable[[RunSpec], Result]) -> Result:
    reset_state()
    if fault:
        rank_faults.PLANTS[fault]()
    try:
        return measure(spec)
    finally:
        rank_faults.PLANTED.undo()


def gathered_in_fp8(spec: RunSpec) -> Result:
    """The arm with FP8 all-gather and precomputed scales, and what it sends."""
    together = Together(spec, next(arm for arm in ARMS if arm.precompute))
    together.take(together.batches(0), 0)
    return parity.measure_wire(together)


def together(found: dict[str, Result]) -> Result:
    values = [replace(v, where=f"{thing}|{v.where}") for thing, (values, _) in found.items() for v in values]
    return values, [f"{thing}|{note}" for thing, (_, notes) in found.items() for note in notes]


def apart(found: Result) -> dict[str, Result]:
    """What each thing measured."""
    parts: dict[str, Result] = {}
    for value in found[0]:
        thing, _, where = value.where.partition("|")
        parts.setdefault(thing, ([], []))[0].append(replace(value, where=where))
    for text in found[1]:
        thing, _, note = text.partition("|")
        parts[thing][1].append(note)
    return parts
