"""Looks at losses: recorded runs that a fault has changed, one step that is trained now, and made-up runs beside their golden."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from fp8parity import recipes
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.gradients import first_step, furthest, sentence
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.table import Judged
from fp8parity.judging.verdict import LOSS, Verdict
from fp8parity.records.cell import Execution
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_records
from fp8parity.training import loop
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from sessions import GOLDEN, stored

from faults.fault import Bench, Blame, Seen, seen_of

Runs = list[Trajectory]


@cache
def calibration(model: str) -> Runs:
    """The runs that ``fp8parity schedule`` recorded: BF16, its replicas, its planted faults, and recipes."""
    return [r for r in load_records(GOLDEN / "records" / "calibration" / f"{model}.zip") if isinstance(r, Trajectory)]


def as_bf16(variant: str) -> Verdict:
    """The verdict on three seeds of a variant of micro, as if a framework gave them for BF16."""
    runs = [r.model_copy(update={"variant": ""}) for r in calibration("micro") if r.variant == variant]
    assert len(runs) == 3
    [found] = evaluate(runs, *stored())
    [verdict] = found.verdicts
    return verdict


def in_a_recipe(variant: str, name: str = "te-current") -> Verdict:
    """The verdict on a recipe if its runs had, in addition, the gaps that this variant had in BF16."""
    plain = {r.seed: r for r in calibration("micro") if r.cell.is_control and not r.variant}
    recipe = {r.seed: r for r in calibration("micro") if r.cell.recipe == name}
    runs = [_combined(recipe[r.seed], r, plain[r.seed]) for r in calibration("micro") if r.variant == variant]
    return judged([*runs, *plain.values()], name)


def _combined(run: Trajectory, fault: Trajectory, plain: Trajectory) -> Trajectory:
    def times(a: list[float], b: list[float], c: list[float]) -> list[float]:
        return [x * y / z for x, y, z in zip(a, b, c, strict=True)]

    first = {k: v * (fault.first_gradients[k] / plain.first_gradients[k]) for k, v in run.first_gradients.items()}
    last = run.validation[-1][1] * fault.validation[-1][1] / plain.validation[-1][1]
    changes = {
        "loss": times(run.loss, fault.loss, plain.loss),
        "grad_norm": times(run.grad_norm, fault.grad_norm, plain.grad_norm),
        "first_gradients": first,
        "validation": [(run.steps - 1, last)],
    }
    return run.model_copy(update=changes)


def judged(runs: Sequence[AnyRecord], recipe: str) -> Verdict:
    """The verdict on the losses of a recipe among runs of one machine."""
    found = [v for e in evaluate(runs, *stored()) for v in e.verdicts]
    return next(v for v in found if v.cell.recipe == recipe and v.check == LOSS)


class Ready:
    """A look that compares with nothing that must be made first."""

    check = LOSS

    def prepare(self, bench: Bench) -> None:
        stored()


@dataclass(frozen=True)
class Recorded(Ready):
    """Three recorded seeds of a variant of micro: as if a framework gave them for BF16, or their gaps in one recipe alone."""

    recipe: str = "te-current"

    @property
    def where(self) -> str:
        return f"recorded runs of {self.recipe} on micro"

    def __call__(self, plant: Any, bench: Bench) -> Seen:
        return seen_of(as_bf16(plant.name) if self.recipe == "bf16" else in_a_recipe(plant.name, self.recipe))


@dataclass(frozen=True)
class Edited(Recorded):
    """Three recorded seeds of BF16 and te-current on micro. A plant takes all six runs and returns changed ones."""

    def __call__(self, plant: Callable[[Runs], Sequence[AnyRecord]], bench: Bench) -> Seen:
        runs = [r for r in calibration("micro") if r.cell.recipe in ("bf16", "te-current") and not r.variant]
        return seen_of(judged(plant(runs), self.recipe))


@cache
def one_step(recipe: str, model: str, seed: int) -> Trajectory:
    """One step, trained now."""
    preset = presets()[model]
    schedule = replace(preset.schedule, steps=1, tail=1, validation_rows=4)
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    return loop.train(
        preset.model, recipes.get(recipe), execution, schedule, corpus.load("topics"), seed, device=torch.device("cpu")
    )


@dataclass(frozen=True)
class FirstGradients:
    """The first gradients of one trained step of each seed, judged with BF16's and sound runs' by the rules alone."""

    recipe: str
    model: str = "micro"
    seeds: tuple[int, ...] = (0, 1, 2)
    check: str = LOSS

    @property
    def where(self) -> str:
        return f"first step of {self.recipe} on {self.model}"

    def prepare(self, bench: Bench) -> None:
        self.trained("bf16")

    def trained(self, recipe: str, train: Callable[..., Trajectory] = one_step) -> Runs:
        return [train(recipe, self.model, seed) for seed in self.seeds]

    def judged(self) -> Judged | None:
        """What is outside in the first step as it is now: no stored ratio has to be up to date."""
        goldens, policy = stored()
        runs, bf16 = self.trained(self.recipe, one_step.__wrapped__), self.trained("bf16")
        rows = first_step(runs, bf16, policy, MeasuredNumbers(), golden=goldens.loss[self.model, "topics"])
        assert rows
        return furthest(rows)

    def __call__(self, plant: Callable[[pytest.MonkeyPatch], object], bench: Bench) -> Seen:
        plant(bench.patch)
        found = self.judged()
        return Seen("fail" if found else "pass", Blame.RECIPE, ("first step",), (), sentence(found) if found else "")
