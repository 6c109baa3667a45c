"""Faults of the timing of GEMMs: made-up records of te-current on codonfm-5b beside their golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gemm_records
from fp8parity.judging.verdict import GEMMS
from fp8parity.records.gemms import Accumulation, GemmTimes

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, seen_of

LOST: dict[str, Any] = {"bf16_seconds": [], "recipe_seconds": []}


@dataclass(frozen=True)
class TimedGemms:
    """Nine pairs of made-up times of each GEMM. Their golden is 1.9 times BF16 for the kernels and 1.6 times with casts."""

    check: str = GEMMS
    where: str = "made-up GEMMs of te-current on codonfm-5b"

    def prepare(self, bench: Bench) -> None:
        pass

    def __call__(self, plant: Callable[[], GemmTimes], bench: Bench) -> Seen:
        return seen_of(gemm_records.judged(plant()))


def _fault(
    words: str,
    place: str = "",
    source: str = "made up",
    status: str = "fail",
    plant: Callable[[], GemmTimes] | None = None,
    **changes: object,
) -> Fault:
    """The GEMM at ``place`` has these ``changes``, unless there is another plant."""
    blame = {"fail": Blame.RECIPE, "drift": Blame.FRAMEWORK}.get(status, Blame.INPUT)
    plant = plant or (lambda: gemm_records.changed(gemm_records.made(), place, **changes))
    named = "" if status == "error" else place
    return Fault(Kind.FRAMEWORK, plant, (Finding(TimedGemms(), named, blame, status, words=words),), source)


def _slower(place: str, factor: float) -> dict[str, Any]:
    """Return times of the recipe that are ``factor`` times as long."""
    sound = next(g for g in gemm_records.made().gemms if g.place == place)
    return {"recipe_seconds": [s * factor for s in sound.recipe_seconds]}


def _without(place: str) -> GemmTimes:
    record = gemm_records.made()
    return record.model_copy(update={"gemms": [g for g in record.gemms if g.place != place]})


BF16_KERNELS = ["nvjet_sm90_tst_128x256"]
UP = "up fprop training"
EXTRA_CAST = ["cast_transpose", "cast", "cast", "nvjet_sm90_qqtst"]
FAULTS = {
    "an extra cast in one operand": _fault(
        "3 kernels next to the GEMM, golden 2: an extra cast", UP, kernels=EXTRA_CAST, **_slower(UP, 1.1)
    ),
    "a cast that takes longer": _fault("slower: up fprop training", UP, **_slower(UP, 1.2)),
    "a silent BF16 GEMM": _fault(
        "silent BF16: down dgrad kernel ran on nvjet_sm90_tst_128x256, and its operands are e5m2 x e4m3",
        "down dgrad kernel",
        "torchtitan 1217",
        kernels=BF16_KERNELS,
    ),
    "fast accumulation swapped for split": _fault(
        "qkv wgrad kernel: fast accumulation, golden split",
        "qkv wgrad kernel",
        "TE 761",
        accumulation=Accumulation.FAST,
    ),
    "E4M3 gradients": _fault("operands e4m3 x e4m3, golden e5m2 x e4m3", "qkv dgrad training", formats=("e4m3",) * 2),
    "a lost GEMM": _fault(
        "down wgrad is missing; a sum without it would be faster",
        status="error",
        plant=lambda: _without("down wgrad training"),
    ),
    "a GEMM that failed": _fault(
        "up wgrad kernel failed: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED; no sum without it",
        "up wgrad kernel",
        "TE 2863",
        "error",
        failed="RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED",
        **LOST,
    ),
    "a result that is wrong": _fault("wrong result: o fprop kernel has error 0.7", "o fprop kernel", error=0.7),
    "a result that is too right": _fault("error 0.0020, golden 0.0400", "o fprop kernel", error=0.002),
    "a GEMM that skips half of its work": _fault(
        "such a gain is a fault", "qkv fprop kernel", **_slower("qkv fprop kernel", 0.5)
    ),
    "all casts slower": _fault(
        "slower: training sum 1.488x BF16, golden 1.600x", plant=lambda: gemm_records.made(training=1.6 * 0.93)
    ),
}
