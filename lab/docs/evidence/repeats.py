"""Count casts and GEMMs of a recipe of TE that give another result.

    python lab/docs/evidence/repeats.py te-block 6 100      # recipe, processes, seconds: once with MPS, once without

Several processes repeat them on one GPU, at the shapes of the linears of `small`. Scales are compared by the GEMMs,
because their padding is not written. Each result is compared at once, so a GEMM does not follow its cast directly.
"""

import sys
import time
from collections import Counter

import torch
from fp8parity.numerics.operands import Operands
from fp8parity.recipes.adapter import GemmTerms
from fp8parity.recipes.registry import adapter, get

ROWS, SHAPES = 16384, ((768, 768), (256, 768), (2304, 768), (768, 2304))
CODES = ("_rowwise_data", "_columnwise_data", "_data", "_transpose")
REPLAYS, FIRST = 20, 3


def results(gemms):
    """Yield the name and the tensor of every cast and GEMM of a training step."""
    for product in ("fprop", "dgrad", "wgrad"):
        for cast in gemms.casts:
            if cast.before == product:
                gemms.cast(cast)
                for name in CODES:
                    if (codes := getattr(gemms.quantized[cast.operand], name, None)) is not None:
                        yield f"cast of {cast.operand}, {name}", codes
        yield product, gemms.gemm(product)


def captured(recipe, n, k):
    """Return a graph of a step, and how often each of its results was another one."""
    torch.manual_seed(n + k)
    made = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for size in ((ROWS, k), (n, k), (ROWS, n))]
    gemms = adapter(recipe.adapter).gemms(recipe, Operands(*made), GemmTerms())
    for _ in range(FIRST):
        first = {name: out.clone() for name, out in results(gemms)}
    counts = {name: torch.zeros((), dtype=torch.int64, device="cuda") for name in first}
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for name, out in results(gemms):
            counts[name] += (out != first[name]).any()
    return graph, counts, (gemms, first)


def repeat(recipe, seconds):
    """Return how many steps ran, and how often each result differed."""
    graphs = {(n, k): captured(recipe, n, k) for n, k in SHAPES}
    steps, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(REPLAYS):
            for graph, *_ in graphs.values():
                graph.replay()
        torch.cuda.synchronize()
        steps += REPLAYS * len(graphs)
    return steps, Counter(
        {f"{n}x{k} {name}": int(c) for (n, k), (_, counts, _) in graphs.items() for name, c in counts.items()}
    )


def main(name, processes, seconds):
    with torch.multiprocessing.get_context("spawn").Pool(int(processes)) as pool:
        found = pool.starmap(repeat, [(get(name), float(seconds))] * int(processes))
    steps, differed = sum(n for n, _ in found), sum((c for _, c in found), Counter())
    print(f"{name}: {steps:,} steps of a linear in {processes} processes; other results: {dict(+differed) or 'none'}")


if __name__ == "__main__":
    main(*sys.argv[1:])
