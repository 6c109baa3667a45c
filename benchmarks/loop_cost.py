"""What the training loop costs over a bare one: the same step of the same model, in turns, in one process.

    python benchmarks/loop_cost.py --model tiny --recipe bf16 --recipe te-current

The bare loop has its batches on the device beforehand and looks at nothing until the end; ``run.loop`` draws batches, reads
each loss and checks it. Both take one compiled or captured step in turns, and the second half of each turn is timed. Printed: milliseconds
a step of both, and the median of their ratios over the turns with its 95% interval.
"""

from __future__ import annotations

import argparse
import time
import warnings
from dataclasses import replace

import numpy as np
import torch
from fp8parity import recipes
from fp8parity.judging import stats
from fp8parity.recipes import matrix as cells
from fp8parity.runner import Preset, presets
from fp8parity.training import loop as run
from fp8parity.training import step as steps
from fp8parity.workload import corpus, models


class Turns:
    """One model with its step, and the two loops around it."""

    def __init__(self, preset: Preset, recipe: recipes.Recipe, execution: str, mode: str, device: torch.device) -> None:
        self.device, self.stream = device, corpus.load("synthetic")
        self.schedule = replace(preset.schedule, validation_every=10**6)
        model = models.build(preset.model, 0, device=device)
        self.converted = recipes.apply(model, recipe, execution, tokens=self.schedule.tokens)
        self.masters = steps.MasterWeightOptimizer(self.converted, self.schedule)
        self.take = steps.make(self.converted, self.masters, self.schedule, mode)
        self.batches = [run.microbatches(self.stream, self.schedule, 0, i, device) for i in range(self.schedule.steps)]
        self.half = self.schedule.steps // 2

    def bare(self) -> float:
        """Seconds a step."""
        for i in range(self.half):
            self.take(self.batches[i], i)
        self._wait()
        start = time.perf_counter()
        for i in range(self.half, self.schedule.steps):
            self.take(self.batches[i], i)
        self._wait()
        return (time.perf_counter() - start) / (self.schedule.steps - self.half)

    def ours(self) -> float:
        """Seconds a step, validation aside: a launch waits for the last step but one, so launches keep the pace of the GPU."""
        history = run.loop(self.take, self.converted, self.masters, self.schedule, self.stream, 0, self.device, None)
        self._wait()
        return float(np.mean(history.seconds[self.half :]))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    if args.repeats < 6:
        parser.error("the interval of a median takes 6 repeats or more")
    warnings.simplefilter("ignore")
    hardware = cells.detect(None)
    recipes.preload(hardware.capability)
    device = torch.device(hardware.device)
    preset = presets()[args.model]
    for name in args.recipe or ["bf16"]:
        recipe = recipes.get(name)
        execution = "native" if recipes.skip_reason(recipe, "native", hardware.capability) is None else "emulated"
        mode = run.mode_for(recipe, execution, device)
        with run.pinned_threads(preset.schedule.threads):
            turns = Turns(preset, recipe, execution, mode, device)
            turns.bare()  # compilation and capture
            pairs = [(turns.bare(), turns.ours()) for _ in range(args.repeats)]
        plain, ours = np.median(pairs, axis=0) * 1e3
        ratio, low, high = stats.median_interval([b / a for a, b in pairs])
        print(
            f"{args.model} {name} {execution} {mode}: bare {plain:.3f} ms, loop {ours:.3f} ms, "
            f"ratio {ratio:.3f} [{low:.3f}, {high:.3f}] of {len(pairs)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
