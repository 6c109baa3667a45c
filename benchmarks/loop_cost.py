"""What the training loop costs over a bare one: the same model, mode and batches, in turns, in one process.

    python benchmarks/loop_cost.py --model tiny --recipe bf16 --recipe te-current

The bare loop has its batches on the device beforehand and looks at nothing until the end; ``run.train`` draws batches, reads
each loss and checks it. Printed: median seconds a step of both and their ratio, over the repeats.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace

import numpy as np
import torch
from fp8parity import cells, corpus, models, recipes, run, steps
from fp8parity.session import presets


def bare(model: str, recipe: recipes.Recipe, execution: str, mode: str, device: torch.device) -> float:
    """Seconds a step of the second half of the schedule."""
    preset, stream = presets()[model], corpus.load("synthetic")
    applied = recipes.apply(models.build(preset.model, 0, device=device), recipe, execution, tokens=preset.schedule.tokens)
    take = steps.make(applied, steps.Masters(applied.model, preset.schedule), preset.schedule, mode)
    batches = [run.microbatches(stream, preset.schedule, 0, i, device) for i in range(preset.schedule.steps)]
    half = preset.schedule.steps // 2
    for i in range(half):
        take(batches[i], i)
    wait(device)
    start = time.perf_counter()
    for i in range(half, preset.schedule.steps):
        take(batches[i], i)
    wait(device)
    return (time.perf_counter() - start) / (preset.schedule.steps - half)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    here = cells.detect(None)
    recipes.preload(here.capability)
    device = torch.device(here.device)
    preset = presets()[args.model]
    schedule = replace(preset.schedule, validation_every=10**6)
    for name in args.recipe or ["bf16"]:
        recipe = recipes.get(name)
        execution = "native" if recipes.why_not(recipe, "native", here.capability) is None else "emulated"
        mode = run.mode_for(recipe, execution, device)
        ratios = []
        for _ in range(args.repeats):
            plain = bare(args.model, recipe, execution, mode, device)
            ours = run.train(preset.model, recipe, execution, schedule, corpus.load("synthetic"), 0, device=device).step_seconds
            ratios.append(ours / plain)
        low, high = min(ratios), max(ratios)
        print(
            f"{args.model} {name} {execution} {mode}: bare {plain * 1e3:.3f} ms, loop {ours * 1e3:.3f} ms, "
            f"ratio {np.median(ratios):.3f} [{low:.3f}, {high:.3f}] of {len(ratios)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
