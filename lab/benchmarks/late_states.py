"""Fork BF16, recipes and planted faults from a trained state that looks like late training.

    python lab/benchmarks/late_states.py FILE.csv --model micro --seeds 3 # trains what FILE lacks, and prints the table
    python lab/benchmarks/late_states.py FILE.csv --table                 # prints the table alone

A state is the end of a BF16 run of the model's own schedule, as it is or changed by a published statistic of late
training. All forks of a state and seed begin there, with new moments, and see the same batches.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from fp8parity.cli.common import start
from fp8parity.judging import stats
from fp8parity.numerics import scaling
from fp8parity.numerics.formats import Format
from fp8parity.recipes import Recipe
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.schema import Trajectory
from fp8parity.runner import Runner
from fp8parity.training.loop import train
from fp8parity.training.step import Loss
from fp8parity.training.variants import Parts, Variant, on_gradients, replica
from fp8parity.workload.schedule import Schedule
from torch import Tensor, nn

Weights = dict[str, Tensor]
STEPS, TAIL, RATE, WARMUP = 60, 20, 1e-4, 5
"""The schedule of a fork."""
ALPHA = 0.025
"""On each side: intervals over seeds are those of 95%."""
SPIKES = (10, 30)
"""The steps of a fork that train on the targets of other tokens."""
READERS = {
    "attention_norm": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "mlp_norm": ("mlp.gate_proj", "mlp.up_proj"),
}


def outlier_channel(weights: Weights, block: str, factor: float) -> None:
    """Multiply one channel of the norms and divide the weights that read it, so that the function stays."""
    for norm, readers in READERS.items():
        weights[f"{block}.{norm}.weight"][1] *= factor
        for reader in readers:
            weights[f"{block}.{reader}.weight"][:, 1] /= factor


def aligned_swiglu(weights: Weights, block: str, factor: float) -> None:
    """Give one unit of SwiGLU the same gate and up projection, ``factor`` times as large."""
    gate, up, down = (weights[f"{block}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    up[1] *= factor
    gate[1] = up[1]
    down[:, 1] /= factor**2


def sharp_attention(weights: Weights, block: str, factor: float) -> None:
    """Multiply the queries, and so all logits of attention."""
    weights[f"{block}.attention.q_proj.weight"] *= factor


@dataclass(frozen=True)
class State:
    """A changed state: ``change`` of each block's weights by ``factor``, and what the source measured."""

    source: str = ""
    change: Callable[[Weights, str, float], None] | None = None
    factor: float = 1.0


STATES = {
    "fresh": State("initial weights"),
    "late": State("the end of the run"),
    "outlier channel": State("outliers 100 times the other channels: arXiv 2211.10438", outlier_channel, 64),
    "massive channel": State("activations up to 100,000 times the others: arXiv 2402.17762", outlier_channel, 4096),
    "aligned SwiGLU": State("gate and up projection align after 200B tokens: arXiv 2409.12517", aligned_swiglu, 8),
    "attention logits": State("logits that make attention one-hot: arXiv 2302.05442, 2309.14322", sharp_attention, 16),
    "spikes": State("wrong targets in two steps"),
    "small gradients": State("all gradients 2**-14 times as large"),
}


def loss_of(state: str, loss: Loss) -> Loss:
    """Return the loss of a state."""
    steps = iter(range(STEPS))

    def spiking(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        wrong = torch.is_grad_enabled() and next(steps) in SPIKES
        return loss(model, inputs, targets.flip(0, 1) if wrong else targets)

    return {"spikes": spiking, "small gradients": lambda *batch: loss(*batch) * 2.0**-14}.get(state, loss)


def flush(_: str, gradient: Tensor, share: float) -> Tensor:
    """Flush the smallest ``share`` of a gradient to zero."""
    size = gradient.float().abs()
    least = size.flatten().kthvalue(max(1, int(share * size.numel()))).values
    return torch.where(size > least, gradient, torch.zeros_like(gradient))


def saturated(amax: Tensor, fmt: Format) -> Tensor:
    """Return a scale that is 16 times too large, so that the largest codes saturate."""
    return 16 * scaling.SCALE_RULES["te-fp32"](amax, fmt)


def changed(name: str, operands: tuple[str, ...] = (), **fields: Any) -> Recipe:
    """Return a recipe with other fields of some operands, or of all."""
    linear = RECIPES[name].linear
    made = {n: replace(op, **fields) for n, op in linear if not operands or n in operands}
    return replace(RECIPES[name], linear=replace(linear, **made))


CONTROL, ULP = "bf16", "one ulp"
SOUND = ("te-current", "te-delayed", "te-block", "ao-tensorwise")
RUNS: Mapping[str, tuple[Recipe, Callable[[Parts], Parts]]] = {
    CONTROL: (RECIPES[CONTROL], lambda parts: parts),
    ULP: (RECIPES[CONTROL], replica(1).plant),
    **{name: (RECIPES[name], lambda parts: parts) for name in SOUND},
    "history of one": (changed("te-delayed", history=1), lambda parts: parts),
    "E4M3 gradients": (changed("te-current", ("dgrad_dy", "wgrad_dy"), format="e4m3"), lambda parts: parts),
    "saturated scale": (changed("te-current", scale="saturated"), lambda parts: parts),
    "1% flushed": (RECIPES["te-current"], on_gradients(partial(flush, share=0.01))),
    "0.1% flushed": (RECIPES["te-current"], on_gradients(partial(flush, share=0.001))),
}
"""What is forked: a recipe and a plant. The last five are faults."""


def run(
    runner: Runner, model: str, name: str, seed: int, state: str = "", weights: Weights | None = None
) -> tuple[Trajectory, Weights]:
    """Train a fork from ``weights``; without, the run that makes a state. Return its record and master weights."""
    preset, (recipe, plant) = runner.preset(model), RUNS[name]
    schedule: Schedule = preset.schedule
    if weights is not None:
        schedule = replace(schedule, steps=STEPS, tail=TAIL, lr=RATE, warmup=WARMUP)
    kept: list[Parts] = []

    def fork(parts: Parts) -> Parts:
        own = parts.optimizer
        for n, master, parameter in zip(own.names, own.masters, own.params, strict=True):
            if weights:
                with torch.no_grad():
                    master.copy_(weights[n])
                    parameter.copy_(master)
        kept.append(plant(replace(parts, loss=loss_of(state, parts.loss))))
        return kept[0]

    execution = Execution.EMULATED if recipe.linear.quantized else Execution.NATIVE
    data = preset.model.data(preset.corpus)
    with mock.patch.dict(scaling.SCALE_RULES, {"saturated": saturated}):
        found = train(
            *(preset.model, recipe, execution, schedule, data, seed),
            device=runner.device,
            mode=Mode.EAGER,  # the loss of "spikes" counts steps, which a graph would not
            variant=Variant("fork", "", fork),
        )
    optimizer = kept[0].optimizer
    return found, {n: m.detach().clone() for n, m in zip(optimizer.names, optimizer.masters, strict=True)}


def state_of(weights: Weights, state: State, layers: int) -> Weights:
    """Return the changed weights of a state."""
    made = {n: w.clone() for n, w in weights.items()}
    for block in range(layers):
        if state.change:
            state.change(made, f"layers.{block}", state.factor)
    return made


class Row(NamedTuple):
    """The gaps of a fork to that of BF16: of the first loss, the mean of the tail, the first gradient's norm."""

    state: str
    run: str
    seed: int
    first: float
    tail: float
    gradient: float


def measure(args: argparse.Namespace, done: set[tuple[str, str, int]], keep: Callable[[Row], None]) -> None:
    """Train what is not done. Gaps are relative to BF16's fork of the same state and seed."""
    runner = start(args.file.parent, args.device)
    for seed in range(args.first, args.first + args.seeds):
        if all((state, name, seed) in done for state in STATES for name in RUNS if name != CONTROL):
            continue
        initial = {
            n: p.detach().float().clone()
            for n, p in runner.preset(args.model).model.initial(seed, runner.device).named_parameters()
        }
        _, weights = run(runner, args.model, CONTROL, seed)
        for label, state in STATES.items():
            begin = initial if label == "fresh" else state_of(weights, state, runner.preset(args.model).model.layers)
            control, _ = run(runner, args.model, CONTROL, seed, label, begin)
            for name in [n for n in RUNS if n != CONTROL and (label, n, seed) not in done]:
                found, _ = run(runner, args.model, name, seed, label, begin)
                pairs = [(r.loss[0], sum(r.loss[-TAIL:]), r.grad_norm[0]) for r in (found, control)]
                keep(Row(label, name, seed, *(a / b - 1 for a, b in zip(*pairs, strict=True))))


def table(rows: list[Row]) -> str:
    """Return Markdown tables: gaps of the tail and of the first gradient's norm to BF16, in per cent."""
    lines = []
    for column, head in {
        "tail": "gap of the last 20 losses, %",
        "gradient": "gap of the first gradient's norm, %",
    }.items():
        lines += [f"| {head} | {' | '.join(STATES)} |", "|---" * (len(STATES) + 1) + "|"]
        for name in [n for n in RUNS if n != CONTROL]:
            values = [[100 * getattr(row, column) for row in rows if row[:2] == (state, name)] for state in STATES]
            lines.append(f"| {name} | {' | '.join(map(_interval, values))} |")
        lines.append("")
    return "\n".join(lines)


def _interval(values: list[float]) -> str:
    if not values:
        return "-"
    found = stats.mean_interval(values, ALPHA)
    return f"{found.mean:+.3f}" + (f" ± {found.high - found.mean:.3f}" if len(values) > 1 else "")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("file", type=Path)
    options.add_argument("--model", default="micro")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--first", type=int, default=0, help="the first seed")
    options.add_argument("--device", choices=("cpu", "auto"), default="auto")
    options.add_argument("--table", action="store_true")
    args = options.parse_args()
    rows: list[Row] = []
    if args.file.exists():
        with args.file.open(newline="") as file:
            rows = [Row(s, n, int(k), *map(float, gaps)) for s, n, k, *gaps in csv.reader(file)]
    if not args.table:
        with args.file.open("a", newline="") as file:
            out = csv.writer(file)

            def keep(row: Row) -> None:
                out.writerow([*row[:3], *(f"{x:.3e}" for x in row[3:])])
                file.flush()
                rows.append(row)

            measure(args, {r[:3] for r in rows}, keep)
    print(table(rows))


if __name__ == "__main__":
    main()
