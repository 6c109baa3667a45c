"""Measure how the gradient of sound runs changes relative to BF16's.

From the early probed step to the later ones (``training/probe.py``), with ``--every N`` to each Nth step.

    python lab/benchmarks/probe_drift.py --model micro --seeds 0-2
    python lab/benchmarks/probe_drift.py --model tiny --seeds 0-0 --recipe te-current
    python lab/benchmarks/probe_drift.py --from lab/records/h200-daily.zip
    python lab/benchmarks/probe_drift.py --model mini --native --mode eager --recipe te-current --seeds 0-0 --off 100

With ``--off STEP`` the recipe is switched off after that step, as a fault: its linears compute in BF16 from then on, or
the first of them with ``--share``. What is judged wrong stands at the end of the line. Compiled blocks and captured
graphs do not see the switch, so the mode is eager.

Each run is one line: the SQNR in dB of all quantized weights at the early step, its change to the others, and the
lowest of a single weight. The last line has the ranges over all runs, on which the limits rest, and what the probes
cost: the process time of a run with them, in units of that without. Recipes run emulated, or natively with
``--native``. ``--from`` trains nothing and reads record sets.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fp8parity import recipes
from fp8parity.judging import gradients, policy
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.spec import LinearSpec
from fp8parity.recipes.conversion import nothing_left
from fp8parity.records import sets
from fp8parity.records.cell import DEFAULT_CORPUS, Execution, Mode
from fp8parity.records.schema import Trajectory
from fp8parity.training import loop, probe
from fp8parity.training.hardware import detect
from fp8parity.training.variants import Parts
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import Schedule
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from faults.plants import after


class Spent:
    """The process seconds inside all probes of this process."""

    def __init__(self) -> None:
        self.seconds, aside = 0.0, probe.Probe._aside

        @contextmanager
        def timed(of: probe.Probe) -> Iterator[None]:
            before = time.process_time()
            with aside(of):
                yield
            self.seconds += time.process_time() - before

        # A probe counts seconds of the clock. Those of the process are only wanted here, so the method is replaced
        # until the process ends.
        probe.Probe._aside = timed  # type: ignore[assignment, method-assign]  # a wrapper, see above


def switch_off(parts: Parts, share: float = 1.0) -> None:
    """Let the first quantized linears of a model compute in BF16: the fault of ``--off`` and ``--share``."""
    linears = [m for m in parts.model.modules() if _quantized(m)]
    for linear in linears[: round(share * len(linears))]:
        _switch_off(linear)


def _quantized(module: nn.Module) -> bool:
    """Whether this is a linear of this project's emulation, of torchao or of Transformer Engine."""
    vendor = type(module).__module__.startswith("transformer_engine") and type(module).__name__ == "Linear"
    return isinstance(module, EmulatedLinear) or type(module).__name__ == "Float8Linear" or vendor


def _switch_off(linear: nn.Module) -> None:
    if isinstance(linear, EmulatedLinear):
        linear.spec = LinearSpec()
    elif type(linear).__name__ == "Float8Linear":
        linear.forward = partial(_plain, linear)
    else:
        from fp8parity.recipes.adapters import te_recipes as te  # it imports Transformer Engine

        te.run_inside(linear, te.context(None))


def _plain(linear: Any, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)


def extent(what: str, values: list[float]) -> str:
    return f"{what} {min(values):.1f} to {max(values):.1f} dB"


def line(run: Trajectory) -> str:
    early, *later = run.probes
    text = f"{run.cell.recipe:32} {run.cell.model} seed {run.seed}: {early.sqnr:.1f} dB in step {early.step}, then "
    text += ", ".join(f"{p.sqnr - early.sqnr:+.1f} in {p.step}" for p in later)
    return f"{text}; one weight {early.worst:.1f} and {later[-1].worst:.1f} at {later[-1].where}"


def summary(runs: list[Trajectory]) -> str:
    each = [r.probes for r in runs]
    between = [p.sqnr - early.sqnr for early, *middle, _ in each for p in middle]
    extents = (
        extent("SQNR", [p.sqnr for probes in each for p in probes]),
        extent("change to the last step", [probes[-1].sqnr - probes[0].sqnr for probes in each]),
        *([extent("to a step between", between)] if between else []),
        extent("one weight", [p.worst for probes in each for p in probes]),
    )
    return f"{len(runs)} runs of {', '.join(sorted({r.cell.model for r in runs}))}: {'; '.join(extents)}"


PLANNED = probe.steps_of


def every(n: int, schedule: Schedule, seed: int) -> list[int]:
    return sorted({*PLANNED(schedule, seed), *range(probe.EARLY + n, schedule.steps, n)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="micro")
    parser.add_argument("--recipe", action="append", help="default: all")
    parser.add_argument("--seeds", default="0-2", help="FIRST-LAST")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--mode", type=Mode, choices=list(Mode))
    parser.add_argument(
        "--off", type=int, metavar="STEP", help="plant a fault: FP8 is off after this step (--mode eager)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="the share of the linears in which it is off")
    parser.add_argument("--every", type=int, metavar="N", help="also probe each Nth step")
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    parser.add_argument("--from", dest="sets", type=Path, nargs="+", metavar="SET", help="read runs, and train none")
    args = parser.parse_args()
    if args.off and args.mode != Mode.EAGER:
        parser.error("--off needs --mode eager")
    if args.sets:
        runs = [r for r in sets.load(args.sets) if isinstance(r, Trajectory) and len(r.probes) > 1]
        print("\n".join([*map(line, runs), summary(runs)]))
        return
    warnings.simplefilter("ignore")
    if args.every:
        probe.steps_of = partial(every, args.every)
    rules, numbers = policy.load(args.golden_dir, datetime.date.today()), measured_numbers.load(args.golden_dir)
    preset, found, ratios = presets()[args.model], list[Trajectory](), list[float]()
    cost, device = Spent(), torch.device(detect(None).device)
    first, last = map(int, args.seeds.split("-"))
    names = args.recipe or [
        n for n, r in recipes.RECIPES.items() if r.linear.quantized and not nothing_left(r, preset.model)
    ]
    execution = Execution.NATIVE if args.native else Execution.EMULATED
    for name in names:
        for seed in range(first, last + 1):
            spent, before, terms = (
                cost.seconds,
                time.process_time(),
                (preset.schedule, corpus.load(DEFAULT_CORPUS), seed),
            )
            fault = after(args.off, partial(switch_off, share=args.share)) if args.off else None
            made = loop.train(
                preset.model, recipes.get(name), execution, *terms, device=device, mode=args.mode, variant=fault
            )
            spent, whole = cost.seconds - spent, time.process_time() - before
            ratios.append(whole / (whole - spent))
            rows = gradients.probes(made, rules.thresholds(made.cell))
            rows += gradients.measured_probes(made, rules, numbers)
            judged = next((gradients.sentence(r) for r in rows if r.outside), "nothing is judged wrong")
            print(f"{line(made)}; {ratios[-1]:.3f} times the process time; {judged}", flush=True)
            found.append(made)
    print(summary(found))
    print(
        f"process time with the probes: {statistics.median(ratios):.3f} times ({min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
