"""A made-up GPU whose times follow a law, so that tests know what a prediction must be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import reports
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.gemms import GemmMode, GemmTimes, Product, TimedGemm
from fp8parity.records.schema import AnyRecord, Throughput
from fp8parity.records.times import DeviceProfile, PartTime
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape, Workload
from fp8parity_lab.prediction import Part
from fp8parity_lab.prediction.basis import PRODUCTS, Basis, basis
from fp8parity_lab.prediction.profile import GPU as SIZES
from fp8parity_lab.prediction.profile import profile_cell
from fp8parity_lab.prediction.sizes import attention_flops, count_parameters, rest_bytes

NAME = "NVIDIA H100 Made Up"
PEAK, BANDWIDTH, LAUNCH = {"bf16": 700e12, "te-current": 1200e12}, 3e12, 1e-6
HERE = reports.provenance(device=NAME).model_copy(update={"capability": [9, 0]})


def gemm(recipe: str, m: int, n: int, k: int) -> float:
    """Small GEMMs reach a smaller share of the peak."""
    flops = 2.0 * m * n * k
    return flops / PEAK[recipe] * (1 + 2e10 / flops) + 2e-6


CASTS: dict[Product, list[str]] = {"fprop": ["x", "w"], "dgrad": ["dy"], "wgrad": []}


def cast(m: int, n: int, k: int, product: Product) -> float:
    """Three microseconds for each operand, and its bytes."""
    elements = {"fprop": m * k + n * k, "dgrad": m * n, "wgrad": 0}[product]
    return 4 * elements / BANDWIDTH + 3e-6 * len(CASTS[product])


def attention(rows: int, length: int, heads: int, head: int) -> float:
    return attention_flops(rows, length, heads, head) / 400e12


def rest(tokens: int, dim: int, q: int, kv: int, hidden: int) -> float:
    return tokens * rest_bytes(dim, q, kv, hidden, True) / BANDWIDTH + 2e-5


def ends(tokens: int, dim: int, vocab: int) -> float:
    head = sum(gemm("bf16", tokens, vocab, dim) for _ in PRODUCTS)
    return head + (16.0 * tokens * vocab + 20.0 * tokens * dim) / BANDWIDTH + 1e-4


def step(work: Workload, recipe: str, block: bool = False) -> float:
    """The true seconds of a step in native execution."""
    s, layers = work.shape, 1 if block else work.shape.layers
    linears = s.layer(work.tokens, joined=False)
    seconds = sum(g.count * _linear(recipe, g) for g in linears)
    seconds += attention(work.micro_batch, work.sequence, s.heads, s.head_dim) + layer_rest(work)
    return layers * seconds + (
        0.0 if block else ends(work.tokens, s.hidden, s.vocab) + 50 * count_parameters(s) / BANDWIDTH
    )


GROUPED = {"bf16": 1.2, "te-current": 1.5}
"""How much longer a group of a grouped GEMM takes than a GEMM alone."""


def of_groups(recipe: str, g: GemmShape) -> float:
    return gemm(recipe, g.m, g.n, g.k) * (g.groups * GROUPED[recipe] if g.groups > 1 else 1)


def _linear(recipe: str, g: GemmShape) -> float:
    casts = [cast(g.m, g.n, g.k, p) * g.groups for p in PRODUCTS] if recipe != "bf16" else []
    return len(PRODUCTS) * of_groups(recipe, g) + sum(casts)


def gemm_times(work: Workload, recipe: str = "te-current") -> GemmTimes:
    """The record of a model's GEMMs, separate and joined."""
    timed = []
    for i, g in enumerate(
        [*work.shape.layer(work.tokens, joined=False), *work.shape.layer(work.tokens), *work.shape.head(work.tokens)]
    ):
        for product in PRODUCTS:
            alone, plain, added = (
                of_groups(recipe, g),
                of_groups("bf16", g),
                cast(g.m, g.n, g.k, product) * g.groups,
            )
            for mode, seconds in ((GemmMode.KERNEL, alone), (GemmMode.TRAINING, alone + added)):
                made = TimedGemm(
                    linear=f"{g.name} {i}", gemm=product, mode=mode, m=g.m, n=g.n, k=g.k, groups=g.groups, count=g.count,
                    bf16_seconds=[plain] * 3, recipe_seconds=[seconds] * 3, casts=CASTS[product] if mode == GemmMode.TRAINING else [],
                )  # fmt: skip
                timed.append(made)
    cell = Cell(model=work.shape.name, recipe=recipe, execution=Execution.NATIVE)
    return GemmTimes(
        cell=cell, micro_batch=work.micro_batch, sequence=work.sequence, layers=work.shape.layers, gemms=timed, peak_flops=PEAK["bf16"],
        calls=1, l2_bytes=0, watch=None, provenance=HERE, session="s",
    )  # fmt: skip


def part(kind: Part, form: str, sizes: dict[str, int], seconds: float) -> PartTime:
    return PartTime(part=kind, form=form, sizes=sizes, seconds=seconds, low=seconds, high=seconds)


def layer_rest(work: Workload) -> float:
    s = work.shape
    width = s.intermediate * max(1, s.experts_per_token)
    return rest(work.tokens, s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim, width)


def block(kind: Part, form: str, work: Workload, seconds: float) -> PartTime:
    """A part of a block that takes these ``seconds``."""
    s = work.shape
    sizes = {"rows": work.micro_batch, "length": work.sequence, "dim": s.hidden, "hidden": s.intermediate}
    return part(kind, form, sizes | {"heads": s.heads, "kv_heads": s.kv_heads}, seconds)


def profile(name: str = NAME) -> DeviceProfile:
    times = [
        part(Part.COPY, "eager", {"bytes": 2**30}, 2**30 / BANDWIDTH),
        part(Part.LAUNCH, "eager", {}, 5e-6),
        part(Part.LAUNCH, "graphed", {}, LAUNCH),
    ]
    for c, rows, length in SIZES.attention:
        sizes = {"rows": rows, "length": length, "head_dim": c.head_dim, "heads": c.heads, "kv_heads": c.kv_heads}
        times.append(part(Part.ATTENTION, "torch", sizes, attention(rows, length, c.heads, c.head_dim)))
    times += [block(Part.BLOCK_REST, "bf16", work, layer_rest(work)) for work in SIZES.blocks]
    times += [
        part(Part.ENDS, "eager", dict(zip(("tokens", "dim", "vocab"), e, strict=True)), ends(*e)) for e in SIZES.ends
    ]
    times += [
        part(Part.OPTIMIZER, "compiled", {"parameters": c.parameters, "tensors": 9}, 50 * c.parameters / BANDWIDTH)
        for c in SIZES.optimizer
    ]
    where = HERE.model_copy(update={"device": name})
    return DeviceProfile(
        cell=profile_cell("topics"),
        memory=80 * 2**30,
        peak_flops=PEAK["bf16"],
        times=times,
        provenance=where,
        session="s",
    )


def timed(work: Workload, off: float = 0.0, recipe: str = "te-current") -> Throughput:
    """A measured step, whose speed-up is off from the law by the factor exp(``off``)."""
    seconds = step(work, "bf16"), step(work, recipe) * math.exp(-off)
    return Throughput(
        cell=Cell(model=work.shape.name, recipe=recipe, execution=Execution.NATIVE), mode=Mode.COMPILED_GRAPHED, tokens=work.tokens,
        steps_a_block=2, bf16_seconds=[2 * seconds[0]] * 6, recipe_seconds=[2 * seconds[1]] * 6, bf16_memory=1, recipe_memory=1,
        flops_per_token=1.0, peak_flops=None, watch=None, provenance=HERE, session="s", attention="cudnn first", optimizer="compiled AdamW",
    )  # fmt: skip


def records(timed_models: Sequence[str], steps: Iterable[Throughput] = ()) -> list[AnyRecord]:
    return [profile(), *(gemm_times(shapes.get(name)) for name in timed_models), *steps]


def made(timed_models: Sequence[str] = ("small", "base", "llama3-8b")) -> Basis:
    found = basis(records(timed_models), NAME)
    assert found is not None and "te-current" in RECIPES
    return found


def noise(n: int, sd: float, seed: int = 0) -> list[float]:
    return [float(x) for x in np.random.default_rng(seed).normal(0, sd, n)]
