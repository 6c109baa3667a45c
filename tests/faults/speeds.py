"""Faults of speed and memory: made-up times of a step beside their golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fp8parity.judging import speed
from fp8parity.judging.references import pooling
from fp8parity.judging.verdict import THROUGHPUT
from fp8parity.records.cell import Mode
from fp8parity.records.schema import Throughput
from timings import ROW, THRESHOLDS, calm_but, made

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, seen_of


@dataclass(frozen=True)
class Timed:
    """Eleven pairs of made-up times of te-current on base, whose golden is 1.2 times BF16 with 0.9 of its memory."""

    check: str = THROUGHPUT
    where: str = "made-up times of te-current on base"

    def prepare(self, bench: Bench) -> None:
        pass

    def __call__(self, plant: Callable[[], Throughput], bench: Bench) -> Seen:
        return seen_of(speed.judge(plant(), pooling.updated(None, [made()]), ROW, THRESHOLDS))


def _fault(
    words: str, source: str = "made up", status: str = "fail", kind: Kind = Kind.FRAMEWORK, **changes: Any
) -> Fault:
    """``changes`` are those of a sound record (``timings.made``)."""
    blame = {"fail": Blame.RECIPE, "drift": Blame.FRAMEWORK}.get(status, Blame.INPUT)
    place = "memory" if "recipe_memory" in changes else "speed"
    finding = Finding(Timed(), place, blame, status, words=words)
    return Fault(kind, lambda: made(**changes), (finding,), source)


def _both(factor: float, recipe: float = 1.0) -> dict[str, Any]:
    """Return times that are ``factor`` (BF16) and ``recipe`` times the golden's."""
    sound, sides = made(), (("bf16_seconds", factor), ("recipe_seconds", recipe))
    return {name: [t * f for t in getattr(sound, name)] for name, f in sides}


drifted = partial(_fault, status="drift")
unclear, stale = (partial(_fault, status=status, kind=Kind.GATE) for status in ("inconclusive", "stale"))
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
    "a step that skips a fifth of its work": _fault("such a gain is a fault", ratio=1.2 / 0.8),
    "another mode than the golden's": stale("the golden's step had mode compiled, this one's eager", mode=Mode.EAGER),
    "a GPU that other work shares": unclear(
        "40% busy before the first block: something else runs", watch=calm_but(busy_before=40)
    ),
}
