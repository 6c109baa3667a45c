"""Divide the time of a step by what its kernels do."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from fp8parity import recipes
from fp8parity.recipes import Recipe
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import TimeSplit
from fp8parity.records.times import Kernel, Split
from fp8parity.timing import blocks
from fp8parity.timing.steps import TimedPair, TimedSide, fastest_attention
from fp8parity.training import kernels, provenance
from fp8parity.training.hardware import isolated
from fp8parity.workload import shapes
from fp8parity.workload.shapes import Workload

from fp8parity_lab.splitting import Category
from fp8parity_lab.splitting.linears import linears

if TYPE_CHECKING:
    from fp8parity.runner import Runner

STEPS = 2
"""Steps of a split under the profiler."""
MAX_LISTED = 40
"""Kernels that a record lists."""
TABLE: tuple[tuple[Category, str], ...] = (
    (Category.OPTIMIZER, r"adam|multi_tensor|lpnorm|foreach|triton_poi_\w*_sqrt"),
    (Category.GEMM, r"triton_tem"),  # a template of Inductor is a matrix product
    (Category.QUANTIZE, r"row_col_rht|hadamard"),  # the first one's name ends with "gemm", and it quantizes
    (Category.QUANTIZE, r"triton_.*(?:amax|float8|clamp|abs)"),
    (Category.NORM, r"triton_.*(?:rms_norm|rsqrt|layer_norm)"),
    (Category.LOSS, r"nll_loss|log_softmax|cross_entropy|cunn_softmax|softmax_warp"),
    (Category.ELEMENTWISE, r"triton_"),
    (Category.ATTENTION, r"fmha|flash|sdpa|attention|fused_attn|fused_rope|cudnn::fusion"),
    (Category.NORM, r"rmsnorm|rms_norm|layer_?norm|GammaBeta"),
    (
        Category.QUANTIZE,
        r"cast_transpose|transpose_optimized|amax|compute_scale|swizzle|quantize|dispatch::fp8|scaled_cast",
    ),
    (Category.GEMM, r"gemm|nvjet|xmma|cutlass|cublas|splitk|gemv"),
    (
        Category.ELEMENTWISE,
        r"elementwise|gated_act|silu|copy|memcpy|memset|fill|CatArray|reduce_kernel|reduce_dbias|rotate_heads",
    ),
)
"""What a kernel does, by a pattern of its name. The first pattern that fits decides.

The names are those of cuBLAS, CUTLASS, cuDNN, Transformer Engine, ATen, Inductor and ``workload/rotary_kernel.py``. A
kernel that Inductor fused has the names of its operations: with a cast it counts as quantization. TE's fused kernels of
this kind keep the name of the norm or the activation.
"""
_PATTERNS = tuple((category, re.compile(pattern, re.IGNORECASE)) for category, pattern in TABLE)


@dataclass(frozen=True)
class Launch:
    """One kernel that ran: its name, and its begin and end in seconds."""

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def launches(work: Callable[[], object]) -> list[Launch]:
    """Run ``work`` under the profiler and return the kernels that it ran on the GPU."""
    return [Launch(e.name, e.time_range.start / 1e6, e.time_range.end / 1e6) for e in kernels.events(work)]


@cache
def category_of(name: str) -> Category:
    """Return what the kernel of this name does."""
    return next((category for category, pattern in _PATTERNS if pattern.search(name)), Category.OTHER)


def busy(ran: Iterable[Launch]) -> float:
    """Return the seconds in which at least one kernel ran."""
    total, end = 0.0, float("-inf")
    for launch in sorted(ran, key=lambda x: x.start):
        total += max(0.0, launch.end - max(launch.start, end))
        end = max(end, launch.end)
    return total


def by_category(ran: Iterable[Launch]) -> dict[str, float]:
    """Return the seconds of the kernels of each category."""
    found: dict[str, float] = defaultdict(float)
    for launch in ran:
        found[category_of(launch.name)] += launch.seconds
    return dict(found)


def split_of(ran: Sequence[Launch], steps: int, seconds: float) -> Split:
    """Return the split of a step of ``seconds``. What its kernels do not fill is idle."""
    times: dict[str, list[float]] = defaultdict(list)
    for launch in ran:
        times[launch.name].append(launch.seconds)
    categories = {category: total / steps for category, total in by_category(ran).items()}
    categories[Category.IDLE] = max(0.0, seconds - busy(ran) / steps)
    longest = sorted(times.items(), key=lambda item: -sum(item[1]))[:MAX_LISTED]
    listed = [
        Kernel(name=name[:200], category=category_of(name), seconds=sum(t) / steps, launches=len(t) / steps)
        for name, t in longest
    ]
    return Split(seconds=seconds, categories=categories, kernels=listed, launches=round(len(ran) / steps))


RUNS = 3
"""Timed runs without the profiler, of ``STEPS`` steps each."""


def measure(
    pair: TimedPair, session: str, workload: Workload, recipe: Recipe, execution: Execution, layers: int = 1
) -> TimeSplit:
    """Split the time of both sides in sequence. Raises ``ValueError`` without a GPU."""
    if pair.device.type != "cuda":
        raise ValueError("a split lists the kernels of a GPU; this machine has none")
    alone = linears(workload, recipe, execution, pair.device)
    return TimeSplit(
        **pair.facts,
        bf16=split(pair.control),
        recipe=split(pair.candidate),
        layers=layers,
        linears=alone,
        **provenance.stamp(pair.device, session),
    )


@isolated()
def split(make: Callable[[], TimedSide]) -> Split:
    """Make one side of a comparison and return where its time goes."""
    with fastest_attention():
        side = make()
        side.run(1)  # captures a graph
        seconds = statistics.median(side.run(STEPS) / STEPS for _ in range(RUNS))
        return split_of(launches(partial(side.run, STEPS)), STEPS, seconds)


def of_step(runner: Runner, cell: Cell) -> TimeSplit:
    """Measure where the time of a cell's training step goes, and record it."""
    work, recipe = shapes.get(cell.model), recipes.get(cell.recipe)
    terms = runner.session, work, recipe, cell.execution, work.shape.layers
    return runner.timed(lambda: measure(runner.step_pair(cell), *terms))


def of_block(runner: Runner, recipe: Recipe, execution: Execution, workload: Workload) -> TimeSplit:
    """Split the time of a block, and record it. Raises ``ValueError`` if the memory is too small."""
    terms = runner.session, workload, recipe, execution
    with blocks.enough_memory(workload, runner.device):
        return runner.timed(lambda: measure(runner.block_pair(recipe, execution, workload), *terms))
