"""What the training loop costs over a bare one: the same step of the same model, in turns, in one process.

    python benchmarks/loop_cost.py --model tiny --recipe bf16 --recipe te-current

The bare loop has its batches on the device beforehand and looks at nothing until the end; ``loop`` draws batches, reads
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
from fp8parity.recipes.registry import preload, skip_reason
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_CORPUS, DEFAULT_MODEL, Execution, Mode
from fp8parity.training.hardware import detect
from fp8parity.training.isolation import pinned_threads
from fp8parity.training.loop import loop, microbatches, mode_for
from fp8parity.training.step import MasterWeightOptimizer, make
from fp8parity.workload import corpus, models
from fp8parity.workload.presets import Preset, presets


class Turns:
    """One model with its step, and the two loops around it."""

    def __init__(
        self, preset: Preset, recipe: recipes.Recipe, execution: Execution, mode: Mode, device: torch.device
    ) -> None:
        self.device, self.stream = device, corpus.load(DEFAULT_CORPUS)
        self.schedule = replace(preset.schedule, validation_every=10**6)
        model = models.build(preset.model, 0, device=device)
        self.converted = recipes.apply(model, recipe, execution, tokens=self.schedule.tokens)
        self.optimizer = MasterWeightOptimizer(self.converted, self.schedule)
        self.take = make(self.converted, self.optimizer, self.schedule, mode)
        self.batches = [microbatches(self.stream, self.schedule, 0, i, device) for i in range(self.schedule.steps)]
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
        history = loop(self.take, self.converted, self.optimizer, self.schedule, self.stream, 0, self.device, None)
        self._wait()
        return float(np.mean(history.seconds[self.half :]))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--recipe", action="append")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    if args.repeats < 6:
        parser.error("the interval of a median takes 6 repeats or more")
    warnings.simplefilter("ignore")
    hardware = detect(None)
    preload(hardware.capability)
    device = torch.device(hardware.device)
    preset = presets()[args.model]
    for name in args.recipe or [CONTROL_RECIPE]:
        recipe = recipes.get(name)
        native = skip_reason(recipe, Execution.NATIVE, hardware.capability) is None
        execution = Execution.NATIVE if native else Execution.EMULATED
        mode = mode_for(recipe, execution, device)
        with pinned_threads(preset.schedule.threads):
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
