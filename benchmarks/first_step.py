"""How far the first gradient norm of a recipe lies from its control's, over fresh seeds: the numbers behind its
[[rule]] and [[band]] rows.

    python benchmarks/first_step.py --model tiny --seeds 100-129
    python benchmarks/first_step.py --model 1b --recipe ao-rowwise-gw-hp --execution native --configuration 1 --barriers   # on a GPU

One step a seed, of the model's own schedule. ``red`` counts seeds outside the limits of golden/policy.toml and golden/numerics; the
parameter that is furthest off is named. A process compiles once, in the configurations that were fastest then: ``--configuration``
takes the n-th of every kernel instead, and ``--barriers`` lets a kernel wait before it reads back what it stored
(fp8parity.training.inductor).
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from fp8parity import recipes
from fp8parity.judging import policy
from fp8parity.judging.first_step import PART, TOTAL, first_step, ratios
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.recipes.matrix import executions
from fp8parity.recipes.registry import preload, skip_reason
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_CORPUS, Execution, Mode
from fp8parity.records.schema import Trajectory
from fp8parity.training.hardware import detect
from fp8parity.training.inductor import Configurations, barriers
from fp8parity.training.loop import train
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets


@contextmanager
def compiled_as(configuration: int | None, with_barriers: bool) -> Iterator[None]:
    """What is compiled inside has the wanted configuration and barriers; exits where no kernel ran that these could change."""
    met: list[Collection[object]] = []
    with ExitStack() as stack:
        if with_barriers:
            met.append(stack.enter_context(barriers()))
        if configuration is not None:
            chosen = stack.enter_context(Configurations())
            chosen.choose(configuration)
            met.append(chosen.found)
        yield
    if not all(met):
        raise SystemExit("no kernel of Inductor's ran for --configuration or --barriers to change")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--recipe", action="append", help="a glob; may be repeated")
    parser.add_argument("--execution", type=Execution, default=Execution.EMULATED)
    parser.add_argument(
        "--mode", type=Mode, help="of the recipes; without it they run as in the suites, as the control always does"
    )
    parser.add_argument("--configuration", type=int, help="of Inductor's kernels, instead of the fastest")
    parser.add_argument("--barriers", action="store_true", help="before what compiled kernels read back")
    parser.add_argument("--seeds", default="100-104", help="first-last")
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    rules, numbers = policy.load(args.golden_dir, datetime.date.today()), measured_numbers.load(args.golden_dir)
    preset, stream = presets()[args.model], corpus.load(DEFAULT_CORPUS)
    hardware = detect(None)
    preload(hardware.capability)
    device = torch.device(hardware.device)
    one = replace(preset.schedule, steps=1, validation_rows=preset.schedule.rows)
    first, last = map(int, args.seeds.split("-"))

    def runs(name: str) -> list[Trajectory]:
        execution, mode = (Execution.NATIVE, None) if name == CONTROL_RECIPE else (args.execution, args.mode)
        recipe, seeds = recipes.get(name), range(first, last + 1)
        return [train(preset.model, recipe, execution, one, stream, seed, device=device, mode=mode) for seed in seeds]

    def show(metric: str, values: list[float]) -> str:
        if not values:
            return f"{metric} -"
        return f"{metric} {np.mean(values):.5f} sd {np.std(values):.5f} [{min(values):.5f}, {max(values):.5f}] n {len(values)}"

    controls = runs(CONTROL_RECIPE)
    name, norm = max(controls[0].first_gradients.items(), key=lambda item: item[1])
    print(f"{CONTROL_RECIPE}: {name} is {(norm / controls[0].grad_norm[0]) ** 2:.1%} of the squared norm", flush=True)
    named = [n for n in recipes.RECIPES if n != CONTROL_RECIPE and any(fnmatchcase(n, g) for g in args.recipe or ["*"])]
    for name in named:
        recipe = recipes.get(name)
        if args.execution not in executions(recipe):
            continue
        if why := skip_reason(recipe, args.execution, hardware.capability):
            print(f"{name}: {why}", flush=True)
            continue
        with compiled_as(args.configuration, args.barriers):
            mine = runs(name)
        measured = [m for a, b in zip(mine, controls, strict=True) for _, m in ratios(a, b)]
        found = [f for a, b in zip(mine, controls, strict=True) if (f := first_step([a], [b], rules, numbers))]
        shown = [show(metric, [m.value for m in measured if m.metric == metric]) for metric in (TOTAL, PART)]
        print(f"{name}: {'; '.join(shown)}; red {sum(f.red for f in found)} of {len(found)} seeds", flush=True)
        worst = max(found, key=lambda f: f.bound_ratio, default=None)
        if worst and worst.red:
            print(f"  {worst.text} ({worst.why})", flush=True)


if __name__ == "__main__":
    main()
