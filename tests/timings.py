"""Made-up step times of one cell, for the tests of throughput."""

from __future__ import annotations

from pathlib import Path

import gemm_records
import numpy as np
import reports
from fp8parity.judging.policy import Policy, SpeedRow
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.schema import Throughput
from fp8parity.records.times import BlockShape, Watch

GPU = "NVIDIA Made Up"
ROW = SpeedRow(band=0.05, memory_band=0.05, why="made up for the tests")
CALM = Watch(busy_before=0, sm_clocks=[1980] * 22, throttled=[])
HERE = reports.provenance(device=GPU)
SHAPE = BlockShape(dim=4096, hidden=14336, heads=32, kv_heads=8, sequence=4096, micro_batch=1)
CELL = Cell(model="base", recipe="te-current", execution=Execution.NATIVE, corpus="topics")


POLICY = Policy(path=Path("policy.toml"), speed=(ROW,), gemm=(gemm_records.ROW,))
THRESHOLDS = POLICY.thresholds(CELL)


def made(ratio: float = 1.2, spread: float = 0.002, pairs: int = 11, **changes: object) -> Throughput:
    """A calm record whose pairs have ratios around ``ratio``, with ``spread`` as their standard deviation."""
    noise = np.linspace(-1.6, 1.6, pairs) * spread
    base = Throughput(
        cell=CELL, mode=Mode.COMPILED, tokens=16384, steps_a_block=2, bf16_seconds=[0.4] * pairs,
        recipe_seconds=[0.4 / (ratio * (1 + float(x))) for x in noise], bf16_memory=20 * 2**30, recipe_memory=18 * 2**30,
        flops_per_token=2e9, peak_flops=989e12, watch=CALM, provenance=HERE, session="s",
    )  # fmt: skip
    return base.model_copy(update=changes)


def calm_but(**changes: object) -> Watch:
    return CALM.model_copy(update=changes)
