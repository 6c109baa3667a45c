"""Plant faults in an engine, and say which number of ``fp8parity engines`` sees them.

    python lab/benchmarks/engine_faults.py --records .parity/engines   # prints the table in Markdown

The baseline of a fault is the same engine without it, with the same trainer, recipe and sequences. A number sees a
fault if the interval of its excess is above 0, at 95% for all numbers together.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from fp8parity.recipes import ConvertedModel
from fp8parity.recipes.conversion import hooked
from fp8parity.recipes.registry import get
from fp8parity.records.cell import CONTROL_RECIPE, Execution
from fp8parity.training.hardware import pinned_threads, reset_state
from fp8parity.workload.presets import presets
from fp8parity_lab.engines.measured import BEFORE, INITIAL, LAST, Plan, as_scores, sequences, states
from fp8parity_lab.engines.models import Engine, OwnSubject, calibrated, engine_scores, load, trainer_scores
from fp8parity_lab.engines.page import UNITS, shown
from fp8parity_lab.engines.scores import MEAN, Compared, Numbers, Pair, above
from torch import Tensor, nn

MODEL, MIXED = "micro", "tiny-moe"
"""The model, and that of the fault of a router."""
MISROUTED = 1000
"""One of so many tokens goes to other experts."""
TEMPERATURE = 0.9
ROPE_BASE = 10_000.0
"""That of every model of this project."""


def in_fp8(x: Tensor) -> Tensor:
    """Round keys or values to E4M3 with a scale of 1, as an FP8 cache without calibration does."""
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def in_bf16(x: Tensor) -> Tensor:
    """Round sines and cosines to BF16."""
    return x.bfloat16().float()


def off_by_one(ids: Tensor) -> Tensor:
    """Return the ids of a tokenizer with one more token in front."""
    return (ids + 1) % presets()[MODEL].model.vocab


def of_bf16_angles(rotations: Tensor) -> Tensor:
    """Return rotations from BF16 positions, frequencies and angles, as a module that is cast as a whole has them."""
    half = rotations.shape[-1]
    frequency = (ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)).bfloat16()
    angle = torch.arange(len(rotations)).bfloat16()[:, None] * frequency
    cos, sin = angle.float().cos(), angle.float().sin()
    return torch.stack((cos, -sin, sin, cos), 1).unflatten(1, (1, 2, 2)).to(rotations.device)


def misrouted(model: nn.Module) -> AbstractContextManager[None]:
    """Reverse the router's order of experts for one of MISROUTED tokens."""
    seen: dict[nn.Module, int] = {}

    def changed(router: nn.Module, _: object, logits: Tensor) -> Tensor:
        first = seen.get(router, 0)
        seen[router] = first + len(logits)
        chosen = torch.arange(first, seen[router], device=logits.device) % MISROUTED == MISROUTED // 2
        return torch.where(chosen[:, None], logits.flip(-1), logits)

    routers = [m for name, m in model.named_modules() if name.endswith(".router")]
    return hooked([router.register_forward_hook(changed) for router in routers])


@dataclass(frozen=True)
class EngineFault:
    """A fault of an engine.

    ``engine``: the engine with it. ``weights``: the state of the training that it holds. ``scales``: the state whose
    activations and weights set its delayed scales. ``plant``: the region with the fault. ``temperature``: that of the
    trainer and of the sound engine.
    """

    engine: Engine = field(default_factory=Engine)
    weights: str = LAST
    scales: str = LAST
    plant: Callable[[nn.Module], AbstractContextManager[None]] = lambda _: nullcontext()
    model: str = MODEL
    temperature: float = 1.0
    recipes: Sequence[str] = (CONTROL_RECIPE, "te-block", "te-current")


FAULTS = {
    "weights of one step before": EngineFault(weights=BEFORE),
    "scale frozen at load": EngineFault(scales=INITIAL, recipes=("te-delayed",)),
    "RoPE: sines and cosines in BF16": EngineFault(Engine(rope=in_bf16)),
    "RoPE: angles in BF16": EngineFault(Engine(rope=of_bf16_angles)),
    f"temperature of {TEMPERATURE} twice": EngineFault(Engine(temperature=TEMPERATURE**2), temperature=TEMPERATURE),
    "token ids off by one": EngineFault(Engine(renumber=off_by_one)),
    "KV cache in FP8, scale 1": EngineFault(Engine(store=in_fp8)),
    f"router, 1 of {MISROUTED} tokens": EngineFault(plant=misrouted, model=MIXED),
}


class Planted(NamedTuple):
    """A fault in a recipe: its numbers next to those of the sound engine."""

    fault: str
    recipe: str
    rows: list[Compared]

    @property
    def seen(self) -> list[Compared]:
        """The numbers that see it, the clearest first: by the excess in widths of its interval."""
        found = [row for row in self.rows if row.worse]
        return sorted(found, key=lambda row: row.excess.value / (row.excess.high - row.excess.low), reverse=True)


def compare(name: str, recipe: str, plan: Plan) -> Planted:
    """Plant a fault in a recipe."""
    fault = FAULTS[name]
    found = states(presets()[fault.model], plan)
    own: OwnSubject = found[LAST]
    ids = sequences(own, plan)
    execution = Execution.EMULATED if get(recipe).linear.quantized else Execution.NATIVE

    def built(state: str) -> ConvertedModel:
        return calibrated(found[state].build(get(recipe), execution), ids)

    def numbers(converted: ConvertedModel, engine: Engine) -> Numbers:
        other = engine_scores(own, converted, ids, plan.prompt, engine)
        return Pair(trainer, as_scores(ids, plan, other)).numbers()

    sound, faulty = built(LAST), built(fault.scales)
    trainer = as_scores(ids, plan, trainer_scores(sound, ids, plan.prompt, fault.temperature))
    baseline = numbers(sound, Engine(temperature=fault.temperature))
    load(faulty.model, found[fault.weights].weights)
    with fault.plant(faulty.model):
        return Planted(name, recipe, above(numbers(faulty, fault.engine), baseline))


def measure(plan: Plan) -> Iterator[Planted]:
    """Plant each fault in each of its recipes."""
    for name, fault in FAULTS.items():
        for recipe in fault.recipes:
            with pinned_threads(1):
                yield compare(name, recipe, plan)
            reset_state()


def table(found: Sequence[Planted]) -> str:
    """Return the table in Markdown. A fault that no number sees has its mean |d|."""
    lines = ["| fault of the engine | recipe | seen by | sound engine | faulty engine |", "|---|---|---|---|---|"]
    for one in found:
        first = one.seen[0] if one.seen else next(row for row in one.rows if row.name == MEAN)
        others = [UNITS[row.name][0].split(",")[0] for row in one.seen[1:]]
        by = (
            UNITS[first.name][0] + f" (and {', '.join(others)})" * bool(others)
            if one.seen
            else "**not seen**; |d|, mnat"
        )
        values = shown(first.name, first.baseline), shown(first.name, first.number)
        lines.append(f"| {one.fault} | {one.recipe} | {by.replace('|d|', 'mean d')} | {values[0]} | {values[1]} |")
    return "\n".join(lines)


def default_plan(records: Path) -> Plan:
    """Return the plan of ``fp8parity engines matrix`` on a CPU."""
    records.mkdir(parents=True, exist_ok=True)
    return Plan(200, 64, 32, 128, 0, torch.device("cpu"), records)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path(".parity/engines"))
    print(table(list(measure(default_plan(parser.parse_args().records)))))
