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
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_CORPUS, DEFAULT_MODEL, Execution, Mode
from fp8parity.training.isolation import pinned_threads
from fp8parity.training.loop import microbatches
from fp8parity.training.step import MasterWeightOptimizer, make
from fp8parity.workload import corpus, models
from fp8parity.workload.presets import Preset, presets


class Stepper:
    """A model with a recipe in place, ready for one more step."""

    def __init__(self, preset: Preset, name: str, execution: Execution) -> None:
        self.schedule = preset.schedule
        model = models.build(preset.model, 0)
        self.converted = recipes.apply(model, recipes.get(name), execution, tokens=self.schedule.tokens)
        self.take = make(
            self.converted, MasterWeightOptimizer(self.converted, self.schedule), self.schedule, Mode.EAGER
        )

    def seconds(self, step: int) -> float:
        """Process time of one step."""
        batches = microbatches(corpus.load(DEFAULT_CORPUS), self.schedule, 0, step, torch.device("cpu"))
        start = time.process_time()
        self.take(batches, step)
        return time.process_time() - start


def _label(recipe: recipes.Recipe, execution: Execution) -> str:
    """Whose code quantizes."""
    if not recipe.linear.quantized:
        return "-"
    return "torchao's emulation" if recipe.vendor_emulation and execution == Execution.EMULATED else "core"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    preset = presets()[args.model]
    print(f"{args.model}: step over BF16 step, {args.rounds} interleaved rounds, 1 thread: median [quartiles]")
    with pinned_threads(1):
        plain = Stepper(preset, CONTROL_RECIPE, Execution.NATIVE)
        for recipe in recipes.RECIPES.values():
            ways = (Execution.CORE, Execution.EMULATED) if recipe.vendor_emulation else executions(recipe)[-1:]
            for execution in ways:
                other = Stepper(preset, recipe.name, execution)
                for step in range(3):
                    plain.seconds(step)
                    other.seconds(step)
                ratios = [other.seconds(s) / plain.seconds(s) for s in range(3, 3 + args.rounds)]
                low, median, high = np.percentile(ratios, [25, 50, 75])
                label = _label(recipe, execution)
                print(f"  {recipe.name:<18} {label:<20} {median:.2f} [{low:.2f}, {high:.2f}]", flush=True)


if __name__ == "__main__":
    main()
