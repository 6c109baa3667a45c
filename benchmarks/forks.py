"""Forks: BF16, recipes and planted faults continue from one BF16 state on the same batches. Do their gaps predict those of full runs?

    python benchmarks/forks.py golden/records/calibration/micro.zip --model micro --at 200

The set holds full runs of the same seeds (``fp8parity calibrate``). A fork is the run from step ``--at`` to the end. The command prints
the tail gap of each kind of run, from the set and from forks, its sd over seeds, and their correlation.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path

import numpy as np
import torch
from fp8parity import recipes
from fp8parity.judging.stats import relative_gaps
from fp8parity.recipes import Recipe, apply
from fp8parity.records.cell import CONTROL_RECIPE, Execution
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.training.loop import microbatches
from fp8parity.training.step import MasterWeightOptimizer, cross_entropy, update
from fp8parity.training.variants import FAULTS, Parts, Variant
from fp8parity.workload import corpus, models
from fp8parity.workload.presets import Preset, presets

CPU = torch.device("cpu")


class Run:
    """A model, its optimizer and a planted fault, at some step of the preset's schedule."""

    def __init__(
        self, preset: Preset, recipe: Recipe, execution: Execution, seed: int, fault: Variant | None = None
    ) -> None:
        model = models.build(preset.model, seed)
        self.schedule, self.seed, self.stream = preset.schedule, seed, corpus.load(preset.corpus)
        self.converted = apply(model, recipe, execution, tokens=preset.schedule.tokens, seed=seed)
        self.optimizer = MasterWeightOptimizer(self.converted, preset.schedule)
        parts = Parts(model, self.optimizer, preset.schedule, cross_entropy)
        self.parts = fault.plant(parts) if fault else parts

    def take(self, first: int, last: int) -> list[float]:
        """Take the steps from ``first`` to before ``last``. Return their losses in nats per token."""
        found = []
        for step in range(first, last):
            self.optimizer.set_lr(self.parts.schedule.lr_at(step))
            batches = microbatches(self.stream, self.schedule, self.seed, step, CPU)
            found.append(float(update(self.converted, self.optimizer, self.schedule, batches, self.parts.loss)[0]))
        return found

    def start_from(self, other: Run) -> None:
        """Take over the weights and the moments of ``other``."""
        for mine, theirs in zip(self.optimizer.masters, other.optimizer.masters, strict=True):
            mine.data.copy_(theirs)
        for parameter, master in zip(self.optimizer.params, self.optimizer.masters, strict=True):
            parameter.data.copy_(master)
        self.optimizer.adamw.load_state_dict(copy.deepcopy(other.optimizer.adamw.state_dict()))


def forks(
    preset: Preset, seed: int, at: int, kinds: dict[str, tuple[Recipe, Execution, Variant | None]]
) -> dict[str, float]:
    """The tail gap of each fork to BF16's own fork, relative, by kind."""
    control, steps = recipes.get(CONTROL_RECIPE), preset.schedule.steps
    trunk = Run(preset, control, Execution.NATIVE, seed)
    trunk.take(0, at)
    losses = {}
    for name, (recipe, execution, fault) in {CONTROL_RECIPE: (control, Execution.NATIVE, None), **kinds}.items():
        branch = Run(preset, recipe, execution, seed, fault)
        branch.start_from(trunk)
        losses[name] = branch.take(at, steps)
    own = losses.pop(CONTROL_RECIPE)
    return {name: relative_gaps([loss], [own], preset.schedule.tail)[0] for name, loss in losses.items()}


def full_gaps(runs: list[Trajectory]) -> dict[str, dict[int, float]]:
    """The tail gap of each full run of the set to BF16, relative, by kind and seed."""
    controls = {r.seed: r for r in runs if r.cell.is_control and not r.variant}
    found: dict[str, dict[int, float]] = {}
    for r in runs:
        if r.variant or not r.cell.is_control:
            found.setdefault(r.variant or r.cell.recipe, {})[r.seed] = relative_gaps(
                [r.loss], [controls[r.seed].loss], r.tail
            )[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--model", default="micro")
    parser.add_argument("--at", type=int, required=True, help="the step at which the forks begin")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory)]
    full, preset, faults = full_gaps(runs), presets()[args.model], {f.name: f for f in FAULTS}
    cells = {r.cell.recipe: r.cell for r in runs if not r.cell.is_control}
    kinds: dict[str, tuple[Recipe, Execution, Variant | None]] = {
        n: (recipes.get(n), c.execution, None) for n, c in cells.items()
    }
    kinds |= {n: (recipes.get(CONTROL_RECIPE), Execution.NATIVE, faults[n]) for n in full if n in faults}
    seeds = sorted({r.seed for r in runs})
    forked = [forks(preset, seed, args.at, kinds) for seed in seeds]
    print(
        f"{args.model}: forks from step {args.at} of {preset.schedule.steps}, {len(seeds)} seeds; tail gaps in %, mean (sd over seeds)"
    )
    means = []
    for name in kinds:
        a, b = 100 * np.array([full[name][s] for s in seeds]), 100 * np.array([f[name] for f in forked])
        means.append((a.mean(), b.mean()))
        print(f"  {name:<28} full {a.mean():+8.4f} ({a.std(ddof=1):.4f})   fork {b.mean():+8.4f} ({b.std(ddof=1):.4f})")
    for label, part in (("recipes", means[: len(cells)]), ("faults", means[len(cells) :])):
        x, y = np.array(part).T
        print(f"  {label}: correlation of fork and full {np.corrcoef(x, y)[0, 1]:+.2f}, n {len(part)}")


if __name__ == "__main__":
    main()
