"""Faults of speed and memory: made-up times of a step beside their golden."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fp8parity.judging import speed
from fp8parity.judging.references import pooling
from fp8parity.judging.verdict import THROUGHPUT
from fp8parity.records.cell import Mode
from fp8parity.records.schema import Throughput
from timings import CELL, ROW, calm_but, made

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, seen_of


@dataclass(frozen=True)
class Timed:
    """Eleven pairs of made-up times of te-current on base, whose golden is 1.2 times BF16 with 0.9 of its memory."""

    check: str = THROUGHPUT
    where: str = "made-up times of te-current on base"

    def prepare(self, bench: Bench) -> None:
        pass

    def __call__(self, plant: Callable[[], Throughput], bench: Bench) -> Seen:
        return seen_of(speed.judge(plant(), pooling.updated(None, [made()]), ROW))


def _fault(
    words: str, source: str = "made up", status: str = "fail", kind: Kind = Kind.FRAMEWORK, **changes: Any
) -> Fault:
    """``changes`` are those of a sound record (``timings.made``)."""
    blame = {"fail": Blame.RECIPE, "drift": Blame.FRAMEWORK}.get(status, Blame.INPUT)
    place = "" if status == "error" else "memory" if "recipe_memory" in changes else "speed"
    finding = Finding(Timed(), place, blame, status, words=words)
    return Fault(kind, lambda: made(**changes), (finding,), source)


def _both(factor: float, recipe: float = 1.0, slow: Sequence[float] = (1.0,) * 11) -> dict[str, Any]:
    """Return times that are ``factor`` (BF16) and ``recipe`` times the golden's, and in each block ``slow`` times as long."""
    sound, sides = made(), (("bf16_seconds", factor), ("recipe_seconds", recipe))
    return {name: [t * f * s for t, s in zip(getattr(sound, name), slow, strict=True)] for name, f in sides}


drifted, unclear = partial(_fault, status="drift"), partial(_fault, status="inconclusive", kind=Kind.GATE)
wrong, stale = partial(_fault, status="error", kind=Kind.GATE), partial(_fault, status="stale", kind=Kind.GATE)
SLEEPS = [1.0, 1.3] * 5 + [1.15]
"""BF16 and the recipe are slowed together in half of the blocks, so that the ratio is sound."""
OTHERS = "something else runs"
FAULTS = {
    "a cast too many": _fault("slower: 1.080x BF16, golden 1.200x", "Megatron-LM 629, TE 761", ratio=1.2 * 0.9),
    "small layers slower than BF16": _fault("slower: 0.970x BF16", "torchao 2410, torchtitan 1207", ratio=0.97),
    "a slower kernel with less memory": _fault("slower", "TE documentation", ratio=1.2 * 0.9, recipe_memory=16 * 2**30),
    "more memory": _fault("more memory: 1.000 of BF16's, golden 0.900", recipe_memory=20 * 2**30),
    "a host that sleeps in some steps": _fault("crosses", "TE 761", "inconclusive", spread=0.1),
    "both sides three times slower": drifted(
        "BF16 itself changed: -66.7%, from 81,920 to 27,307 tokens/s", **_both(3, 3)
    ),
    "BF16 30% slower, the recipe as before": drifted("BF16 itself changed: -23.1%, from", **_both(1.3)),
    "BF16 30% faster, the recipe as before": drifted("BF16 itself changed: +30.0%, from", **_both(1 / 1.3)),
    "a host that sleeps in some steps of BF16": _fault(
        "the interval of BF16 tokens/s crosses", status="inconclusive", **_both(1, 1, SLEEPS)
    ),
    "a step that skips work": _fault("faster than the golden by more than 3 bands", ratio=1.2 * 12),
    "a step that skips a fifth of its work": _fault("such a gain is a fault", ratio=1.2 / 0.8),
    "memory of a step that skips work": _fault("less memory than the golden", recipe_memory=9 * 2**30),
    "memory that was not measured": wrong("bf16_memory is 0", bf16_memory=0),
    "times that are zero": wrong("block 0 of recipe_seconds is 0", recipe_seconds=[0.0] * 11),
    "a time below zero": wrong("block 10 of bf16_seconds", bf16_seconds=[0.4] * 10 + [-0.4]),
    "times that are no numbers": wrong("is nan s", recipe_seconds=[math.nan] * 11),
    "times without their pair": wrong("10 times of BF16 and 11", bf16_seconds=[0.4] * 10),
    "times of three pairs": wrong("3 pairs; 6 are needed", pairs=3),
    "another mode than the golden's": stale("the golden's step had mode compiled, this one's eager", mode=Mode.EAGER),
    "another batch than the golden's": stale("had tokens", tokens=8192),
    "other work counted as FLOPs": stale("had flops_per_token", flops_per_token=1.0),
    "too few pairs of times": unclear("7 pairs; 8 are needed", pairs=7),
    "a GPU that nobody watched": unclear("was not watched", watch=None),
    "a GPU that other work shares": unclear(
        f"40% busy before the first block: {OTHERS}", watch=calm_but(busy_before=40)
    ),
    "a GPU that is shared at the end": unclear(
        f"40% busy after the last block: {OTHERS}", watch=calm_but(busy_after=40)
    ),
    "a GPU that throttles": unclear("throttled: hardware thermal", watch=calm_but(throttled=["hardware thermal"])),
    "a recipe without a throughput golden": _fault(
        "no throughput golden for te-block native",
        status="no-golden",
        kind=Kind.GATE,
        cell=CELL.model_copy(update={"recipe": "te-block"}),
    ),
}
