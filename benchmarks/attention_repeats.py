"""How often FP8 attention gives another result for the same operands, while several processes use one GPU.

    python benchmarks/attention_repeats.py [--recipe te-delayed] [--processes 6] [--seconds 20]

Needs a GPU of sm_90 and Transformer Engine. Start it with NVIDIA's Multi-Process Service and without. Each repeat makes a new module and
takes the passes of the check ``attention``. Prints for each process how many repeats differ from the most common result, and the results:
the SQNR in dB of the output, dq, dk and dv, to 0.001 dB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.synchronize import Barrier

import torch
from fp8parity import recipes
from fp8parity.checks.attention import SHAPE, TENSORS, draw, reference, results, settled
from fp8parity.numerics.operands import sqnr
from fp8parity.recipes.registry import adapter, preload
from torch import Tensor

Results = Mapping[str, Tensor]


def counted(
    attend: Callable[[], Results], exact: Results, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Counter[str]:
    """Count the results of ``attend`` for ``seconds`` of ``clock``, at least once."""
    seen: Counter[str] = Counter()
    end = clock() + seconds
    while not seen or clock() < end:
        found = attend()
        seen[" ".join(f"{sqnr(exact[name], found[name]):.3f}" for name in TENSORS)] += 1
    return seen


def summary(seen: Counter[str]) -> str:
    """For example "2 of 700 repeats differ: 698 x 25.502 19.531 19.552 21.435, 1 x ..."."""
    (_, usual), *_ = ordered = seen.most_common()
    return f"{seen.total() - usual} of {seen.total()} repeats differ: " + ", ".join(
        f"{n} x {noise}" for noise, n in ordered
    )


def process(number: int, recipe: str, seconds: float, together: Barrier) -> None:
    """What one process does and prints. All begin to count at the same time."""
    preload((9, 0))
    chosen = recipes.get(recipe)
    vendor = adapter(chosen.adapter).fp8_attention()
    if vendor is None:
        raise ValueError(f"{recipe}: its package has no FP8 attention")
    operands = [t.to("cuda") for t in draw(SHAPE)]
    exact = results(reference, *(t.double() for t in operands))
    attend = partial(settled, vendor, chosen, operands)
    attend()
    together.wait(timeout=300)
    print(f"process {number}: {summary(counted(attend, exact, seconds))}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="te-delayed")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20.0)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("attention_repeats: this machine has no GPU")
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(args.processes)
    started = [
        context.Process(target=process, args=(i, args.recipe, args.seconds, together)) for i in range(args.processes)
    ]
    for one in started:
        one.start()
    for one in started:
        one.join()
    raise SystemExit(any(one.exitcode for one in started))


if __name__ == "__main__":
    main()
