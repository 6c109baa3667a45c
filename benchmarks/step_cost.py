"""What emulation costs: a training step of each recipe over a plain BF16 step, interleaved in one process on one thread.

    python benchmarks/step_cost.py [--model tiny] [--rounds 15]

Prints the median ratio of process times with its quartiles; absolute times on a shared CPU are noise, so none is printed.
"""

from __future__ import annotations

import argparse
import time
import warnings

import numpy as np
import torch
from fp8parity import recipes
from fp8parity.recipes.matrix import executions
from fp8parity.runner import presets
from fp8parity.training import step as steps
from fp8parity.training.loop import microbatches, pinned_threads
from fp8parity.training.step import MasterWeightOptimizer
from fp8parity.workload import corpus, models


class Stepper:
    """A model with a recipe in place, ready for one more step."""

    def __init__(self, preset: object, name: str, execution: str) -> None:
        self.schedule = preset.schedule
        model = models.build(preset.model, 0)
        self.converted = recipes.apply(model, recipes.get(name), execution, tokens=self.schedule.tokens)
        self.take = steps.make(self.converted, MasterWeightOptimizer(self.converted, self.schedule), self.schedule, "eager")

    def seconds(self, step: int) -> float:
        """Process time of one step."""
        batches = microbatches(corpus.load("synthetic"), self.schedule, 0, step, torch.device("cpu"))
        start = time.process_time()
        self.take(batches, step)
        return time.process_time() - start


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    preset = presets()[args.model]
    print(f"{args.model}: step over BF16 step, {args.rounds} interleaved rounds, 1 thread: median [quartiles]")
    with pinned_threads(1):
        plain = Stepper(preset, "bf16", "native")
        for recipe in recipes.RECIPES.values():
            ways = ["core", "emulated"] if recipe.vendor_emulation else list(executions(recipe))[-1:]
            for way in ways:
                other = Stepper(preset, recipe.name, way)
                for step in range(3):
                    plain.seconds(step)
                    other.seconds(step)
                ratios = [other.seconds(s) / plain.seconds(s) for s in range(3, 3 + args.rounds)]
                low, median, high = np.percentile(ratios, [25, 50, 75])
                label = {"core": "core", "emulated": "torchao's emulation" if recipe.vendor_emulation else "core"}.get(way, "-")
                print(f"  {recipe.name:<18} {label:<20} {median:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
