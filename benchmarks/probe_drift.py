"""How the gradient of sound runs moves beside BF16's, from the early probed step to the last one (``training/probe.py``).

    python benchmarks/probe_drift.py --model micro --seeds 0-2
    python benchmarks/probe_drift.py --model tiny --recipe te-current --seeds 0-1 --cost

Each run is one line: the SQNR in dB of all quantised weights at both steps, its change, and the lowest of a single weight. The last line
has the ranges over all runs, on which the limits of ``judging/arithmetic.py`` rest. With ``--cost`` each run is trained again without
the probe, in turns, and the ratio of their process times is printed. Recipes run emulated, or natively with ``--native``.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings

import torch
from fp8parity import recipes
from fp8parity.recipes.conversion import nothing_left
from fp8parity.records.cell import DEFAULT_CORPUS, Execution, Mode
from fp8parity.records.schema import Trajectory
from fp8parity.training import loop, probe
from fp8parity.training.hardware import detect
from fp8parity.workload import corpus
from fp8parity.workload.presets import Preset, presets


def train(preset: Preset, recipe: recipes.Recipe, seed: int, execution: Execution, mode: Mode | None) -> tuple[Trajectory, float]:
    """Train a run. Return its record and its process seconds."""
    device = torch.device(detect(None).device)
    before = time.process_time()
    made = loop.train(preset.model, recipe, execution, preset.schedule, corpus.load(DEFAULT_CORPUS), seed, device=device, mode=mode)
    return made, time.process_time() - before


def unprobed_seconds(preset: Preset, recipe: recipes.Recipe, seed: int, execution: Execution, mode: Mode | None) -> float:
    """The process seconds of the same run without a probe."""
    steps_of = probe.steps_of
    probe.steps_of = lambda schedule: ()
    try:
        return train(preset, recipe, seed, execution, mode)[1]
    finally:
        probe.steps_of = steps_of


def extent(what: str, values: list[float]) -> str:
    return f"{what} {min(values):.1f} to {max(values):.1f} dB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="micro")
    parser.add_argument("--recipe", action="append", help="default: all")
    parser.add_argument("--seeds", default="0-2", help="FIRST-LAST")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--mode", type=Mode, choices=list(Mode))
    parser.add_argument("--cost", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    preset, found, ratios = presets()[args.model], list[Trajectory](), list[float]()
    first, last = map(int, args.seeds.split("-"))
    names = args.recipe or [n for n, r in recipes.RECIPES.items() if r.linear.quantised and not nothing_left(r, preset.model)]
    execution = Execution.NATIVE if args.native else Execution.EMULATED
    for name in names:
        for seed in range(first, last + 1):
            terms = preset, recipes.get(name), seed, execution, args.mode
            made, seconds = train(*terms)
            early, late = made.probes
            text = f"{name:32} seed {seed}: {early.sqnr:.1f} dB in step {early.step}, {late.sqnr:.1f} in step {late.step}"
            text += f" ({late.sqnr - early.sqnr:+.1f}); one weight {early.worst:.1f} and {late.worst:.1f} at {late.where}"
            if args.cost:
                ratios.append(seconds / unprobed_seconds(*terms))
                text += f"; {ratios[-1]:.3f} times the process time"
            print(text, flush=True)
            found.append(made)
    pairs = [r.probes for r in found]
    extents = (
        extent("SQNR", [p.sqnr for pair in pairs for p in pair]),
        extent("change", [late.sqnr - early.sqnr for early, late in pairs]),
        extent("one weight", [p.worst for pair in pairs for p in pair]),
    )
    print(f"{len(found)} runs of {args.model}: {'; '.join(extents)}")
    if ratios:
        print(f"process time with the probe: {statistics.median(ratios):.3f} times ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
