"""Made-up times of GEMMs, for the tests of ``fp8parity gemm`` and of what is built on its records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import reports
from fp8parity.judging import gemms
from fp8parity.judging.policy import GemmRow, Policy
from fp8parity.judging.references import pooling
from fp8parity.judging.references.timed import GemmGolden
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes, Part, Product, Tensor, TimedCast, TimedGemm
from fp8parity.records.times import Watch
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape

GPU = "NVIDIA Made Up"
ROW = GemmRow(
    band=0.05, place_band=0.1, bf16_band=0.1, error=0.3, bf16_error=0.01, error_band=0.15, why="made up for the tests"
)
THRESHOLDS = Policy(path=Path("policy.toml")).thresholds(Cell(model="tiny", recipe="bf16", execution=Execution.NATIVE))
CALM = Watch(busy_before=0, busy_after=0, sm_clocks=[1980] * 12, throttled=[], power_capped=0.0)
PEAK = 800e12
"""The made-up measured BF16 peak in FLOP/s."""
KERNELS: dict[Product, str] = {"fprop": "nvjet_sm90_qqtst", "dgrad": "nvjet_sm90_rqtst", "wgrad": "nvjet_sm90_qrsst"}
FORMATS: dict[Product, tuple[str, str]] = {
    "fprop": ("e4m3", "e4m3"),
    "dgrad": ("e5m2", "e4m3"),
    "wgrad": ("e5m2", "e4m3"),
}
CASTS: dict[Product, list[str]] = {"fprop": ["x", "w"], "dgrad": ["dy"], "wgrad": []}
BEFORE: dict[Tensor, Product] = {"x": "fprop", "w": "fprop", "dy": "dgrad"}


def paired(seconds: float, ratio: float, pairs: int = 9, spread: float = 0.002) -> tuple[list[float], list[float]]:
    """Times of BF16 and of a recipe that is ``ratio`` times as fast."""
    noise = 1 + np.linspace(-1.6, 1.6, pairs) * spread
    return [seconds] * pairs, [float(seconds / ratio / x) for x in noise]


def timed(
    shape: GemmShape, gemm: Product, mode: GemmMode, ratio: float, part: Part = "layer", **changes: object
) -> TimedGemm:
    """One GEMM at 80% of the peak in BF16."""
    bf16, recipe = paired(shape.flops / (0.8 * PEAK), ratio)
    casts = CASTS[gemm] if mode == GemmMode.TRAINING else []
    made = TimedGemm(
        linear=shape.name, gemm=gemm, mode=mode, m=shape.m, n=shape.n, k=shape.k, groups=shape.groups, count=shape.count, part=part,
        bf16_seconds=bf16, recipe_seconds=recipe, kernels=["cast"] * len(casts) + [KERNELS[gemm]],
        bf16_kernels=["nvjet_sm90_tst_128x256"], formats=FORMATS[gemm],
        accumulation=Accumulation.FAST if gemm == "fprop" else Accumulation.SPLIT, output="bfloat16",
        casts=casts, error=0.04, bf16_error=0.002,
    )  # fmt: skip
    return made.model_copy(update=changes)


def main_grads(record: GemmTimes) -> GemmTimes:
    """The record as with ``--main-grads``: every wgrad adds to its result."""
    return record.model_copy(
        update={"gemms": [g.model_copy(update={"accumulates": g.gemm == "wgrad"}) for g in record.gemms]}
    )


def made(model: str = "codonfm-5b", kernel: float = 1.9, training: float = 1.6, **changes: object) -> GemmTimes:
    """A calm record of te-current for a preset, with these ratios to BF16 in both modes."""
    work = shapes.get(model)
    ratios = {GemmMode.KERNEL: kernel, GemmMode.TRAINING: training}
    parts: list[tuple[GemmShape, Part]] = [(g, "layer") for g in work.shape.layer(work.tokens)] + [
        (g, "model") for g in work.shape.head(work.tokens)
    ]
    gemms = [
        timed(g, gemm, mode, ratio, part) for g, part in parts for gemm in KERNELS for mode, ratio in ratios.items()
    ]
    casts = [
        TimedCast(
            linear=g.name,
            operand=operand,
            before=before,
            directions=2,
            elements=g.m * g.k,
            part=part,
            seconds=[1e-4] * 9,
        )
        for g, part in parts
        for operand, before in BEFORE.items()
    ]
    base = GemmTimes(
        cell=Cell(model=model, recipe="te-current", execution=Execution.NATIVE), micro_batch=work.micro_batch, sequence=work.sequence,
        layers=work.shape.layers, gemms=gemms, casts=casts, peak_flops=PEAK, sheet_flops=989e12, calls=20, l2_bytes=50 * 2**20,
        watch=CALM, provenance=reports.provenance(device=GPU), session="s",
    )  # fmt: skip
    return base.model_copy(update=changes)


def changed(record: GemmTimes, place: str, **changes: object) -> GemmTimes:
    """The record with changes of the GEMM at ``place``, for example "qkv fprop kernel"."""
    gemms = [g.model_copy(update=changes) if g.place == place else g for g in record.gemms]
    assert gemms != record.gemms
    return record.model_copy(update={"gemms": gemms})


def slower(record: GemmTimes, factor: float) -> GemmTimes:
    """The record with longer times on both sides, so its ratios are as before."""
    times = ("bf16_seconds", "recipe_seconds")
    gemms = [g.model_copy(update={k: [s * factor for s in getattr(g, k)] for k in times}) for g in record.gemms]
    return record.model_copy(update={"gemms": gemms})


def watched(**changes: object) -> Watch:
    """The watch of a calm GPU, with changes."""
    return CALM.model_copy(update=changes)


def judged(record: GemmTimes, golden: GemmGolden | None = None) -> Verdict:
    """The verdict on a record, beside a golden of the calm record if none is given."""
    return gemms.judge(record, golden or pooling.updated(None, [made()]), ROW, THRESHOLDS)
