"""Faults of the timing of GEMMs: made-up records of te-current on codonfm-5b beside their golden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import gemm_records
from fp8parity.judging.verdict import GEMMS
from fp8parity.records.gemms import Accumulation, GemmTimes

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, seen_of

LOST: dict[str, object] = {"bf16_seconds": [], "recipe_seconds": []}


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
    name: str,
    plant: Callable[[], GemmTimes],
    words: str,
    place: str = "",
    status: str = "fail",
    source: str = "made up",
) -> Fault:
    blame = {"fail": Blame.RECIPE, "drift": Blame.FRAMEWORK}.get(status, Blame.INPUT)
    return Fault(name, Kind.FRAMEWORK, source, plant, (Finding(TimedGemms(), place, blame, status, words=words),))


def _of(place: str, **changes: object) -> Callable[[], GemmTimes]:
    return lambda: gemm_records.changed(gemm_records.made(), place, **changes)


def _slower(place: str, factor: float) -> Callable[[], GemmTimes]:
    """One GEMM whose recipe takes ``factor`` times as long."""

    def plant() -> GemmTimes:
        record = gemm_records.made()
        sound = next(g for g in record.gemms if g.place == place)
        return gemm_records.changed(record, place, recipe_seconds=[s * factor for s in sound.recipe_seconds])

    return plant


def _extra_cast() -> GemmTimes:
    """The cast of one operand runs twice: one kernel more, and a tenth more time."""
    record, place = _slower("up fprop training", 1.1)(), "up fprop training"
    kernels = next(g.kernels for g in record.gemms if g.place == place)
    return gemm_records.changed(record, place, kernels=["cast_transpose", *kernels])


def _without(place: str) -> GemmTimes:
    record = gemm_records.made()
    return record.model_copy(update={"gemms": [g for g in record.gemms if g.place != place]})


BF16_KERNELS = ["nvjet_sm90_tst_128x256"]
FAULTS = (
    _fault(
        "an extra cast in one operand",
        _extra_cast,
        "3 kernels next to the GEMM, golden 2: an extra cast",
        "up fprop training",
    ),
    _fault(
        "a cast that takes longer",
        _slower("up fprop training", 1.2),
        "slower: up fprop training",
        "up fprop training",
    ),
    _fault(
        "a silent BF16 GEMM",
        _of("down dgrad kernel", kernels=BF16_KERNELS),
        "silent BF16: down dgrad kernel ran on nvjet_sm90_tst_128x256, and its operands are e5m2 x e4m3",
        "down dgrad kernel",
        source="torchtitan 1217",
    ),
    _fault(
        "fast accumulation swapped for split",
        _of("qkv wgrad kernel", accumulation=Accumulation.FAST),
        "qkv wgrad kernel: fast accumulation, golden split",
        "qkv wgrad kernel",
        source="TE 761",
    ),
    _fault(
        "E4M3 gradients",
        _of("qkv dgrad training", formats=("e4m3", "e4m3")),
        "operands e4m3 x e4m3, golden e5m2 x e4m3",
        "qkv dgrad training",
    ),
    _fault(
        "a lost GEMM",
        lambda: _without("down wgrad training"),
        "down wgrad is missing; a sum without it would be faster",
        status="error",
    ),
    _fault(
        "a GEMM that failed",
        _of("up wgrad kernel", **LOST, failed="RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED"),
        "up wgrad kernel failed: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED; no sum without it",
        status="error",
        source="TE 2863",
    ),
    _fault(
        "a result that is wrong",
        _of("o fprop kernel", error=0.7),
        "wrong result: o fprop kernel has error 0.7",
        "o fprop kernel",
    ),
    _fault(
        "a result that is too right",
        _of("o fprop kernel", error=0.002),
        "error 0.0020, golden 0.0400",
        "o fprop kernel",
    ),
    _fault(
        "a GEMM that skips half of its work",
        _slower("qkv fprop kernel", 0.5),
        "such a gain is a fault",
        "qkv fprop kernel",
    ),
    _fault(
        "all casts slower",
        lambda: gemm_records.made(training=1.6 * 0.93),
        "slower: training sum 1.488x BF16, golden 1.600x",
    ),
    _fault(
        "kernels of another version",
        lambda: gemm_records.made(kernel=1.9 * 0.9),
        "slower: kernel sum 1.710x BF16, golden 1.900x",
    ),
    _fault(
        "a gradient that is added to, not written",
        _of("up wgrad kernel", accumulates=True),
        "up wgrad kernel: adds to its result, golden the other way",
        "up wgrad kernel",
    ),
)
