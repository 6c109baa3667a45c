"""Made-up splits of a step, and the times of its linears alone."""

from __future__ import annotations

from fp8parity.records.cell import Mode
from fp8parity.records.schema import TimeSplit
from fp8parity.records.times import LinearTime, Split
from fp8parity_lab.splitting import Category
from timings import CELL, HERE


def linear(fqns: tuple[str, ...], n: int, bf16: float, own: float) -> LinearTime:
    noise = [1 + 0.001 * i for i in range(-3, 4)]
    return LinearTime(
        fqns=fqns, k=4096, n=n, bf16_seconds=[bf16 * x for x in noise], recipe_seconds=[own * x for x in noise]
    )


Q = linear(("attention.q_proj", "attention.o_proj"), 4096, 2.0e-3, 1.5e-3)
KV = linear(("attention.k_proj", "attention.v_proj"), 1024, 0.5e-3, 0.6e-3)
SAME = linear(("mlp.down_proj",), 4096, 1.0e-3, 1.0e-3)


def split(*linears: LinearTime, layers: int = 1) -> TimeSplit:
    sides = [
        Split(seconds=s, categories={Category.GEMM: 0.8 * s, Category.QUANTIZE: q * s, Category.IDLE: 0.2 * s - q * s})
        for s, q in ((0.0125, 0.0), (0.0102, 0.1))
    ]
    return TimeSplit(
        cell=CELL, mode=Mode.COMPILED, tokens=4096, bf16=sides[0], recipe=sides[1], linears=list(linears), layers=layers,
        provenance=HERE, session="s",
    )  # fmt: skip
