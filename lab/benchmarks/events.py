"""Plant one event in the middle of te-current's runs of micro, and print what the loss gate says.

python lab/benchmarks/events.py [EVENT ...] takes two minutes. BF16 is that of golden/records/micro-epyc.zip, so another
type of CPU is part of each gap: "sound" shows it.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from fp8parity import recipes
from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.records import sets
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Trajectory
from fp8parity.training import loop
from fp8parity.training.variants import Parts, Variant
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets

GOLDEN = Path(__file__).parents[2] / "golden"
AT, OFF, BF16_FROM = 150, range(11, 291), 20
"""The step of an event, the steps without FP8, and the first one with moments in BF16."""
Step = Callable[[float], torch.Tensor]


def stepping(change: Callable[[Any, Step, float, int], torch.Tensor]) -> Callable[[Parts], Parts]:
    """Return a plant that takes each step by ``change(optimizer, real step, clip, number)``."""

    def plant(parts: Parts) -> Parts:
        optimizer, numbers = parts.optimizer, iter(range(10**6))
        real = optimizer.step
        optimizer.step = lambda clip: change(optimizer, real, clip, next(numbers))  # type: ignore[method-assign]
        return parts

    return plant


def lost(names: tuple[str, ...] = ()) -> Callable[[Any, Step, float, int], torch.Tensor]:
    """Return a step in which these gradients are zero (all, without names)."""

    def change(o: Any, real: Step, clip: float, number: int) -> torch.Tensor:
        for name, gradient in o.gradients.items():
            if number == AT and (not names or name in names):
                gradient.zero_()
        return real(clip)

    return change


def doubled(o: Any, real: Step, clip: float, number: int) -> torch.Tensor:
    if number == AT:
        o.set_lr(2 * o.schedule.lr_at(number))
    return real(clip)


def twice(o: Any, real: Step, clip: float, number: int) -> torch.Tensor:
    if number == AT:
        real(clip)
    return real(clip)


def rounded(o: Any, real: Step, clip: float, number: int) -> torch.Tensor:
    """Keep the moments in BF16."""
    norms = real(clip)
    for state in o.state.values():
        for name in ("exp_avg", "exp_avg_sq"):
            if number >= BF16_FROM:
                state[name].copy_(state[name].bfloat16())
    return norms


def uncleared(parts: Parts) -> Parts:
    optimizer, numbers = parts.optimizer, iter(range(10**6))
    real = optimizer.zero
    optimizer.zero = lambda: None if next(numbers) == AT else real()  # type: ignore[method-assign]
    return parts


def fp8_off(parts: Parts) -> Parts:
    steps, real = [0], parts.optimizer.step

    def step(clip: float) -> torch.Tensor:
        steps[0] += 1
        return real(clip)

    def forward(linear: EmulatedLinear, quantized: Any, x: torch.Tensor) -> torch.Tensor:
        plain = torch.is_grad_enabled() and steps[0] in OFF
        return F.linear(x, linear.weight, linear.bias) if plain else quantized(x)

    parts.optimizer.step = step  # type: ignore[method-assign]
    for linear in (m for m in parts.model.modules() if isinstance(m, EmulatedLinear)):
        linear.forward = partial(forward, linear, linear.forward)  # type: ignore[method-assign]
    return parts


EVENTS: dict[str, Callable[[Parts], Parts]] = {
    "sound": lambda parts: parts,
    "all gradients lost in step 150": stepping(lost()),
    "one gradient lost in step 150": stepping(lost(("layers.0.mlp.up_proj.weight",))),
    "rate doubled in step 150": stepping(doubled),
    "step 150 taken twice": stepping(twice),
    "gradients of step 149 kept in step 150": uncleared,
    "moments in BF16 from step 20": stepping(rounded),
    "FP8 off from step 11 to 290": fp8_off,
}


def main() -> None:
    stored, rules = references.load(GOLDEN), policy.load(GOLDEN, datetime.date.today())
    known = [r for r in sets.load([GOLDEN / "records/micro-epyc.zip"]) if isinstance(r, Trajectory)]
    bf16, sound = ([r for r in known if r.cell.recipe == name] for name in ("bf16", "te-current"))
    preset, stream, device = presets()["micro"], corpus.load("topics"), torch.device("cpu")
    for name in sys.argv[1:] or EVENTS:
        runs = []
        for r in sound:
            made = loop.train(
                preset.model, recipes.get("te-current"), Execution.EMULATED, preset.schedule, stream, r.seed,
                device=device, variant=Variant("", "", EVENTS[name]),
            )  # fmt: skip
            runs.append(made.model_copy(update={"session": r.session, "provenance": r.provenance}))
        [machine] = evaluate([*bf16, *runs], stored, rules)
        [v] = [v for v in machine.verdicts if not v.cell.is_control]
        [gap] = [r.shown for r in v.rows if r.metric == "to control: tail gap"] or ["-"]
        print(f"| {name} | {v.status} | {gap} | {v.headline} |", flush=True)


if __name__ == "__main__":
    main()
