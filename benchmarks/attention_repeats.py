"""How often FP8 attention gives another result for the same operands, while several processes use one GPU.

    python benchmarks/attention_repeats.py [--recipe te-delayed] [--processes 6] [--seconds 20]

Needs a GPU of sm_90 and Transformer Engine. Start it with NVIDIA's Multi-Process Service and without. Each repeat makes a new module and
takes the passes of the check ``attention``. Prints for each process how often each result came: the noise of the output and of dq, in dB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Mapping

import torch
from fp8parity import recipes
from fp8parity.checks.attention import SHAPE, WARMUP, draw, reference, results
from fp8parity.recipes.registry import adapter, preload
from torch import Tensor

WATCHED = ("output", "dq")
Results = Mapping[str, Tensor]


def counted(attend: Callable[[], Results], exact: Results, seconds: float) -> Counter[tuple[float, ...]]:
    """Count the results of ``attend`` for ``seconds``, at least once. A result is the SQNR of each watched tensor in dB, to 0.001 dB."""
    seen: Counter[tuple[float, ...]] = Counter()
    end = time.monotonic() + seconds
    while not seen or time.monotonic() < end:
        found = attend()
        noise = [(found[name].double() - exact[name]).norm() / exact[name].norm() for name in WATCHED]
        seen[tuple(round(float(-20 * torch.log10(share)), 3) for share in noise)] += 1
    return seen


def process(number: int, recipe: str, seconds: float) -> None:
    """What one process does and prints."""
    preload((9, 0))
    chosen = recipes.get(recipe)
    vendor = adapter(chosen.adapter).fp8_attention()
    if vendor is None:
        raise ValueError(f"{recipe}: its package has no FP8 attention")
    operands = [t.to("cuda") for t in draw(SHAPE)]
    exact = results(reference, *(t.double() for t in operands))

    def attend() -> Results:
        attention = vendor.attention(chosen, SHAPE, fp8=True)
        for _ in range(WARMUP):
            results(attention, *operands)
        return results(attention, *operands)

    seen = counted(attend, exact, seconds)
    counts = "; ".join(f"{' and '.join(map(str, noise))} dB: {n}" for noise, n in seen.most_common())
    print(f"process {number}: {sum(seen.values())} repeats; {counts}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="te-delayed")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention_repeats: this machine has no GPU")
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=process, args=(i, args.recipe, args.seconds)) for i in range(args.processes)]
    for one in started:
        one.start()
    for one in started:
        one.join()
    raise SystemExit(any(one.exitcode for one in started))


if __name__ == "__main__":
    main()
