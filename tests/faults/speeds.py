"""Faults of speed and memory: made-up times of a step beside their golden."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

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
    name: str,
    source: str,
    plant: Callable[[], Throughput],
    words: str,
    status: str = "fail",
    kind: Kind = Kind.FRAMEWORK,
) -> Fault:
    blame = {"fail": Blame.RECIPE, "drift": Blame.FRAMEWORK}.get(status, Blame.INPUT)
    place = "" if status == "error" else "memory" if "memory" in name else "speed"
    return Fault(name, kind, source, plant, (Finding(Timed(), place, blame, status, words=words),))


def _both(factor: float, recipe: float = 1.0) -> Callable[[], Throughput]:
    """Times of BF16 that are ``factor`` times the golden's, and times of the recipe that are ``recipe`` times the golden's."""
    sound = made()
    bf16, own = [s * factor for s in sound.bf16_seconds], [s * recipe for s in sound.recipe_seconds]
    return lambda: made(bf16_seconds=bf16, recipe_seconds=own)


def _sleeping() -> Throughput:
    """BF16 and the recipe are slowed together in half of the blocks, so that the ratio is sound."""
    slow = [1.0, 1.3] * 5 + [1.15]
    sound = made()
    bf16, recipe = (
        [s * f for s, f in zip(seconds, slow, strict=True)] for seconds in (sound.bf16_seconds, sound.recipe_seconds)
    )
    return made(bf16_seconds=bf16, recipe_seconds=recipe)


FAULTS = (
    _fault("a cast too many", "Megatron-LM 629, TE 761", lambda: made(1.2 * 0.9), "slower: 1.080x BF16, golden 1.200x"),
    _fault("small layers slower than BF16", "torchao 2410, torchtitan 1207", lambda: made(0.97), "slower: 0.970x BF16"),
    _fault(
        "a slower kernel with less memory",
        "TE documentation",
        lambda: made(1.2 * 0.9, recipe_memory=16 * 2**30),
        "slower",
    ),
    _fault(
        "more memory", "made up", lambda: made(recipe_memory=20 * 2**30), "more memory: 1.000 of BF16's, golden 0.900"
    ),
    _fault("a host that sleeps in some steps", "TE 761", lambda: made(spread=0.1), "crosses", "inconclusive"),
    _fault(
        "both sides three times slower",
        "made up",
        _both(3, 3),
        "BF16 itself changed: -66.7% tokens/s, from 81,920 to 27,307",
        "drift",
    ),
    _fault(
        "BF16 30% slower, the recipe as before", "made up", _both(1.3), "BF16 itself changed: -23.1% tokens/s", "drift"
    ),
    _fault(
        "BF16 30% faster, the recipe as before",
        "made up",
        _both(1 / 1.3),
        "BF16 itself changed: +30.0% tokens/s",
        "drift",
    ),
    _fault(
        "a host that sleeps in some steps of BF16",
        "made up",
        _sleeping,
        "the interval of BF16's tokens/s crosses",
        "inconclusive",
    ),
    _fault("a step that skips work", "made up", lambda: made(1.2 * 12), "faster than the golden by more than 3 bands"),
    _fault("a step that skips a fifth of its work", "made up", lambda: made(1.2 / 0.8), "such a gain is a fault"),
    _fault(
        "memory of a step that skips work",
        "made up",
        lambda: made(recipe_memory=9 * 2**30),
        "less memory than the golden",
    ),
    _fault(
        "memory that was not measured", "made up", lambda: made(bf16_memory=0), "bf16_memory is 0", "error", Kind.GATE
    ),
    _fault(
        "times that are zero",
        "made up",
        lambda: made(recipe_seconds=[0.0] * 11),
        "block 0 of recipe_seconds is 0",
        "error",
        Kind.GATE,
    ),
    _fault(
        "a time below zero",
        "made up",
        lambda: made(bf16_seconds=[0.4] * 10 + [-0.4]),
        "block 10 of bf16_seconds",
        "error",
        Kind.GATE,
    ),
    _fault(
        "times that are no numbers",
        "made up",
        lambda: made(recipe_seconds=[math.nan] * 11),
        "is nan s",
        "error",
        Kind.GATE,
    ),
    _fault(
        "times without their pair",
        "made up",
        lambda: made(bf16_seconds=[0.4] * 10),
        "10 times of BF16 and 11",
        "error",
        Kind.GATE,
    ),
    _fault("times of three pairs", "made up", lambda: made(pairs=3), "3 pairs; 6 are needed", "error", Kind.GATE),
    _fault(
        "another mode than the golden's",
        "made up",
        lambda: made(mode=Mode.EAGER),
        "the golden's step had mode compiled, this one's eager",
        "stale",
        Kind.GATE,
    ),
    _fault("another batch than the golden's", "made up", lambda: made(tokens=8192), "had tokens", "stale", Kind.GATE),
    _fault(
        "other work counted as FLOPs",
        "made up",
        lambda: made(flops_per_token=1.0),
        "had flops_per_token",
        "stale",
        Kind.GATE,
    ),
    _fault(
        "too few pairs of times", "made up", lambda: made(pairs=7), "7 pairs; 8 are needed", "inconclusive", Kind.GATE
    ),
    _fault(
        "a GPU that nobody watched", "made up", lambda: made(watch=None), "was not watched", "inconclusive", Kind.GATE
    ),
    _fault(
        "a GPU that other work shares",
        "made up",
        lambda: made(watch=calm_but(busy_before=40)),
        "40% busy before the first block: something else runs",
        "inconclusive",
        Kind.GATE,
    ),
    _fault(
        "a GPU that is shared at the end",
        "made up",
        lambda: made(watch=calm_but(busy_after=40)),
        "40% busy after the last block: something else runs",
        "inconclusive",
        Kind.GATE,
    ),
    _fault(
        "a GPU that throttles",
        "made up",
        lambda: made(watch=calm_but(throttled=["hardware thermal"])),
        "throttled: hardware thermal",
        "inconclusive",
        Kind.GATE,
    ),
    _fault(
        "a recipe without a throughput golden",
        "made up",
        lambda: made(cell=CELL.model_copy(update={"recipe": "te-block"})),
        "no throughput golden for te-block native",
        "no-golden",
        Kind.GATE,
    ),
)
