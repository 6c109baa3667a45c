"""Train a long schedule side by side: BF16, its one-ulp replicas, and recipes.

    python lab/benchmarks/long_runs.py FOLDER --model tiny-long --recipe te-block --recipe te-delayed --seeds 4

Start it again after a kill: finished runs are kept, and the others go on from their checkpoints, if the build is the
same (outside a git repository FP8PARITY_COMMIT names it). ``python lab/benchmarks/gap_tables.py --lengths FOLDER``
prints the gaps, and ``fp8parity schedule --from FOLDER`` the noise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
from fp8parity.cli.common import start
from fp8parity.did_you_mean import refuse_unknown
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import CONTROL_RECIPE, Cell, Execution
from fp8parity.training.variants import FAULTS, Variant, on_gradients, replica
from fp8parity.workload.presets import presets
from fp8parity_lab.cli.schedule import changed
from fp8parity_lab.executions import first_runnable
from fp8parity_lab.long_runs import long_presets, phased, trajectory
from torch import Tensor


def thinned(_: str, gradient: Tensor) -> Tensor:
    """Set the gradient of every thousandth weight to zero, always of the same weights."""
    kept = torch.ones(gradient.numel(), dtype=gradient.dtype, device=gradient.device)
    kept[::1000] = 0
    return gradient * kept.view_as(gradient)


THINNED = Variant("one in a thousand", "every thousandth weight has no gradient", on_gradients(thinned))
PLANTED = {f.name: f for f in (*FAULTS, THINNED)}
Run = tuple[str, int, str]
"""A recipe, a seed and the name of a variant."""


def runs(args: argparse.Namespace) -> list[Run]:
    """Return all runs, seed by seed. Faults are planted in BF16 only."""
    replicas = [f"replica{k + 1}" for k in range(args.replicas)]
    found = []
    for seed in range(args.first, args.first + args.seeds):
        found += [(CONTROL_RECIPE, seed, variant) for variant in ("", *replicas, *args.fault)]
        found += [(r, seed, v) for r in args.recipe for v in ("", *replicas[: args.recipe_replicas])]
    return found


def train(args: argparse.Namespace, run: Run) -> str:
    """Train one run, and say what came of it."""
    recipe, seed, name = run
    preset = changed(phased((presets() | long_presets())[args.model]), args.change)
    runner = start(args.folder, args.device, models={args.model: preset}, resume=True)
    execution = first_runnable(RECIPES[recipe], runner.hardware.capability) or Execution.NATIVE
    cell = Cell(model=args.model, recipe=recipe, execution=execution, corpus=preset.corpus)
    variants = PLANTED | {v.name: v for v in (replica(k + 1) for k in range(args.replicas))}
    found = trajectory(runner, cell, seed, variants[name] if name else None)
    tail = sum(found.loss[-found.tail :]) / found.tail
    return f"{cell.id} {found.content}: {found.seconds:.0f} s, tail loss {tail:.5f}, weights {found.final_weights[:12]}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--model", default="tiny-long")
    options.add_argument("--change", default="", help="changes of the schedule, such as steps=2000,tail=400")
    options.add_argument("--recipe", action="append", default=[])
    options.add_argument("--fault", action="append", default=[])
    options.add_argument("--seeds", type=int, default=4)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--replicas", type=int, default=1, help="of each BF16 run")
    options.add_argument("--recipe-replicas", type=int, default=0, help="of each run of a recipe, at most --replicas")
    options.add_argument("--processes", type=int, default=0, help="default: all runs side by side")
    options.add_argument("--device", choices=("cpu", "auto"), default="auto")
    args = options.parse_args()
    refuse_unknown("model", [args.model], presets() | long_presets())
    refuse_unknown("recipe", args.recipe, RECIPES)
    refuse_unknown("fault", args.fault, PLANTED)
    asked, begun = runs(args), time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes or len(asked), mp_context=spawn) as pool:
        for done in as_completed([pool.submit(train, args, run) for run in asked]):
            print(f"[{time.monotonic() - begun:.0f} s] {done.result()}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
