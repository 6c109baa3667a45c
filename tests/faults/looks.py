"""Looks of the numerics checks and of the canary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch
from fp8parity.checks import canary, gemm, gradients
from fp8parity.checks.protocol import RunSpec
from fp8parity.judging import numerics
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import numbers as measured_numbers
from fp8parity.judging.references.numbers import MeasuredNumbers, Source
from fp8parity.judging.verdict import Verdict
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import Rule
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.training.variants import Variant
from fp8parity.workload.presets import presets
from reports import provenance
from sessions import cell, shorten, stored
from trajectories import NANO

from faults.fault import Bench, Seen, seen_of

SHOWN = "fp8parity.judging.numerics.SHOWN"
EXTRA = {"core-rowwise": "ao-rowwise", "core-tensorwise": "ao-tensorwise"}
"""Recipes that only the faults need: torchao's on this project's emulation."""

BY_BLOCK = "second-block-bf16"
"""te-current with the second block in BF16."""


def add_recipes(patch: pytest.MonkeyPatch) -> None:
    for name, of in EXTRA.items():
        patch.setitem(RECIPES, name, replace(RECIPES[of], vendor_emulation=False, adapter="", native=None))
    patch.setitem(RECIPES, BY_BLOCK, replace(RECIPES["te-current"], rules=(Rule(blocks=(1,)),)))


def numbers_of(sound: Measurements) -> MeasuredNumbers:
    """The values of a sound run as measured numbers."""
    return measured_numbers.updated(MeasuredNumbers(), [sound], Source.of([sound], "set"), stored()[1])[0]


def against(sound: Measurements, found: Measurements) -> Verdict:
    """The verdict on values, with the values of a sound run as measured numbers and the project's own policy."""
    return numerics.judge(found, stored()[1], numbers_of(sound))


@dataclass(frozen=True)
class Numerics:
    """A numerics check of an emulated cell, judged against the stored numbers. A plant changes attributes through pytest's monkeypatch."""

    check: str
    recipe: str
    model: str = "tiny"

    @property
    def where(self) -> str:
        return f"{self.recipe} on {self.model}" if self.check not in ("gemm", "codes", "defaults") else self.recipe

    @property
    def cell(self) -> Cell:
        return cell(self.recipe, "native" if self.recipe == "bf16" else "emulated", self.model)

    def prepare(self, bench: Bench) -> None:
        bench.patch.setattr(SHOWN, 999)
        add_recipes(bench.patch)

    def __call__(self, plant: Callable[[pytest.MonkeyPatch], object], bench: Bench) -> Seen:
        plant(bench.patch)
        return seen_of(self.judged(bench))

    def judged(self, bench: Bench) -> Verdict:
        """The verdict on this cell as it is now. A recipe that a plant has changed is judged under its own name."""
        return bench.session.numerics(self.check, self.cell)


@dataclass(frozen=True)
class Gaussian(Numerics):
    """The check ``gemm`` on Gaussian operands alone. All seven families of NVFP4 take seconds."""

    def prepare(self, bench: Bench) -> None:
        super().prepare(bench)
        bench.patch.setattr(gemm, "FAMILIES", gemm.FAMILIES[:1])

    def judged(self, bench: Bench) -> Verdict:
        return bench.session.numerics(self.check, self.cell, partial=True)


_SOUND: dict[Numerics, Measurements] = {}
"""What looks measured before anything was planted."""


@dataclass(frozen=True)
class Measured(Numerics):
    """The same, judged against numbers that a sound run of this process has measured: no stored number has to be up to date."""

    model: str = "nano"

    def prepare(self, bench: Bench) -> None:
        super().prepare(bench)
        shorten(bench.patch)
        if self.check == "gradients":
            bench.patch.setattr(gradients, "TRAINING", dataclasses.replace(gradients.TRAINING, steps=10))
            bench.patch.setattr(gradients, "trained_state", gradients.trained_state.__wrapped__)
        if self not in _SOUND:
            _SOUND[self] = bench.session.measure(self.check, self.cell)

    def judged(self, bench: Bench) -> Verdict:
        return against(_SOUND[self], bench.session.measure(self.check, self.cell))


MICRO = presets()["micro"]
MODELS = presets() | {"nano": NANO}


def canary_of(variant: Variant | None = None, recipe: str = "bf16", model: str = "micro") -> list[Measurement]:
    """The canary's numbers of a cell, with a planted change."""
    of, execution = MODELS[model], cell(recipe, "native" if recipe == "bf16" else "emulated").execution
    spec = RunSpec(RECIPES[recipe], execution, torch.device("cpu"), of.model, of.schedule, MICRO.corpus)
    return canary.measure(dataclasses.replace(spec, variant=variant))[0]


@cache
def sound_canary(model: str = "micro") -> list[Measurement]:
    return canary_of(model=model)


def canary_record(values: list[Measurement], recipe: str = "bf16", model: str = "micro") -> Measurements:
    where = cell(recipe, "native" if recipe == "bf16" else "emulated", model)
    return Measurements(cell=where, check="canary", values=values, provenance=provenance(), session="s")


def canary_verdict(values: list[Measurement], recipe: str = "bf16", model: str = "micro") -> Verdict:
    """The verdict on the canary's values: of BF16 with the sound values as measured numbers, of a recipe by the rules alone."""
    found = canary_record(values, recipe, model)
    return (
        against(canary_record(sound_canary()), found)
        if recipe == "bf16"
        else numerics.judge(found, stored()[1], MeasuredNumbers())
    )


@dataclass(frozen=True)
class CanaryLook:
    """A look at the canary of a cell. Its place is the first number that is wrong. A plant is a variant, or changes attributes.

    ``alone`` are the only metrics that may be wrong. Without them, any may be.
    """

    alone: tuple[str, ...] = ()
    check: str = "canary"
    recipe: str = "bf16"
    model: str = "micro"

    @property
    def where(self) -> str:
        return f"{self.recipe} on {self.model}"

    def prepare(self, bench: Bench) -> None:
        sound_canary()

    def __call__(self, plant: Variant | Callable[[pytest.MonkeyPatch], object], bench: Bench) -> Seen:
        if not isinstance(plant, Variant):
            plant(bench.patch)
        variant = plant if isinstance(plant, Variant) else None
        seen = seen_of(self.judged(variant))
        numbers = tuple(name for name in seen.places if name != "cause")
        others = {name.split(" @ ")[0] for name in numbers} - set(self.alone)
        assert not (self.alone and others), others
        return replace(seen, places=numbers[:1])

    def judged(self, variant: Variant | None) -> Verdict:
        raise NotImplementedError


@dataclass(frozen=True)
class Canary(CanaryLook):
    """The canary of a cell alone."""

    def judged(self, variant: Variant | None) -> Verdict:
        return canary_verdict(canary_of(variant, self.recipe, self.model), self.recipe, self.model)


@dataclass(frozen=True)
class BothArms(CanaryLook):
    """The canary of a recipe in a session whose BF16 has the same plant."""

    def judged(self, variant: Variant | None) -> Verdict:
        names = ("bf16", self.recipe)
        both = [canary_record(canary_of(variant, name, self.model), name, self.model) for name in names]
        sound = numbers_of(canary_record(sound_canary(self.model), model=self.model))
        [found] = evaluate(both, Goldens({}, numbers=sound), stored()[1])
        return next(v for v in found.verdicts if not v.cell.is_control)


def sound(look: Numerics, bench: Bench) -> Verdict:
    """The verdict of a look without a fault."""
    look.prepare(bench)
    if isinstance(look, Measured):
        return against(_SOUND[look], _SOUND[look])
    return look.judged(bench)
