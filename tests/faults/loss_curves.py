"""Faults that show along a run: made-up losses, norms and validations beside a golden of the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from fp8parity.judging.policy import LossRow
from fp8parity.judging.references.loss import Golden
from fp8parity.records.schema import Trajectory
from paired import ROW, SEEDS, STEPS, Make, at, golden_of, judged, runner

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, Words, seen_of
from faults.runs import Ready

Pair = tuple[list[Trajectory], list[Trajectory]]
"""The runs of a cell and those of BF16. They are the same for BF16 itself."""
Change = np.ndarray | float


@dataclass(frozen=True)
class Paired(Ready):
    """Three made-up seeds of 160 steps. A plant gets the maker of runs and returns the cell's runs and those of BF16."""

    row: LossRow = ROW
    bare: bool = False
    where: str = "made-up runs of te-current"

    def __call__(self, plant: Callable[[Make], Pair], bench: Bench) -> Seen:
        run = runner(bench.make)
        return seen_of(judged(self.golden(run), *plant(run), row=self.row))

    def golden(self, run: Make) -> Golden:
        full = golden_of(run)
        seeds = [s.model_copy(update={"replicas": []}) for s in full.seeds]
        return full.model_copy(update={"noise": [], "seeds": seeds}) if self.bare else full


def recipe(run: Make, change: Change = 0.0, control: Change = 0.0) -> Pair:
    return [run("te-current", s, 10, change) for s in SEEDS], [run(seed=s, change=control) for s in SEEDS]


def bf16(run: Make, change: Change) -> Pair:
    made = [run(seed=s, change=change) for s in SEEDS]
    return made, made


def _norms(run: Make, factor: Change, *, control: bool, candidate: bool = True) -> Pair:
    """Gradient norms times a factor, in the runs of BF16 and of the recipe, or of BF16 as the cell."""
    runs, controls = recipe(run)

    def changed(rs: list[Trajectory]) -> list[Trajectory]:
        return [r.model_copy(update={"grad_norm": (np.asarray(r.grad_norm) * factor).tolist()}) for r in rs]

    if not candidate:
        return changed(controls), changed(controls)
    return changed(runs), changed(controls) if control else controls


def _validations(run: Make, factors: tuple[float, ...], each: float = 0.0) -> Pair:
    runs, controls = recipe(run)
    return [
        r.model_copy(update={"validation": [(159, 3.5 * f + each * r.seed)]})
        for r, f in zip(runs, factors, strict=True)
    ], controls


def _one_validation_lost(run: Make) -> Pair:
    runs, controls = recipe(run)
    return [r.model_copy(update={"validation": [(100, math.nan), (159, 3.5)]}) for r in runs], controls


def _bf16_validation(run: Make) -> Pair:
    high = [run(seed=s).model_copy(update={"validation": [(159, 3.5 * 1.0008)]}) for s in SEEDS]
    return high, high


LATE = np.where(np.arange(STEPS) < 100, 1, 2)
RISING = at(120, 140, -0.002) + at(140, 160, 0.002)
WIDE = ROW.model_copy(update={"min_step_band": 0.01})
NO_REPLICAS = ROW.model_copy(update={"bf16_margin": None})
SPIKE = "the loss left the step band"
GROWS = ("the gap to BF16 changes within the tail by more than the margin", "the gap grows within the tail: +0.397%")
OUT = "the gap to BF16 is outside the margin"


def _found(place: str, words: Words = "", *, look: Paired = Paired()) -> tuple[Finding, ...]:
    return (Finding(look, place, Blame.RECIPE_CHANGED, words=words),)


def _drift(
    place: str, words: Words = "", *, look: Paired = Paired(), blame: Blame = Blame.FRAMEWORK_CHANGED
) -> tuple[Finding, ...]:
    return (Finding(look, place, blame, "drift", words=words),)


def _of_recipe(name: str, change: Change, place: str, words: Words, look: Paired = Paired()) -> Fault:
    return Fault(name, Kind.RECIPE, "made up", partial(recipe, change=change), _found(place, words, look=look))


FAULTS = (
    _of_recipe("spike of the loss", at(80, 88, 0.004), "first out", SPIKE),
    _of_recipe("dip of the loss", at(80, 88, -0.004), "first out", SPIKE),
    _of_recipe("slow start", at(0, 40, 0.003), "first out", SPIKE),
    _of_recipe("last window of the loss", at(152, 160, 0.006), "first out", OUT),
    _of_recipe("all losses high", at(0, 160, 0.0025), "first out", OUT),
    _of_recipe("losses too good", at(0, 160, -0.04), "first out", "such a gain is a fault"),
    _of_recipe("gap that grows within the tail", RISING, "trend", GROWS, Paired(WIDE)),
    *(
        Fault(
            f"gradient norms {word}",
            Kind.RECIPE,
            "made up",
            partial(_norms, factor=np.where(np.arange(STEPS) < 100, 1, factor), control=False),
            _found(
                "gradient norm", ("the gradient norm left its band around BF16's", "gradient norm  step 96, seed 0: ")
            ),
        )
        for word, factor in (("low", 0.9), ("high", 1.1))
    ),
    Fault(
        "validation loss high",
        Kind.RECIPE,
        "made up",
        partial(_validations, factors=(1.004,) * 3, each=1e-4),
        _found("last validation", "the last validation loss is not BF16's"),
    ),
    Fault(
        "validation loss low",
        Kind.RECIPE,
        "made up",
        partial(_validations, factors=(0.99,) * 3),
        _found("last validation"),
    ),
    Fault(
        "validation losses apart",
        Kind.RECIPE,
        "made up",
        partial(_validations, factors=(1.05, 1.15, 1.4)),
        _found("last validation"),
    ),
    Fault(
        "one validation loss high",
        Kind.RECIPE,
        "made up",
        partial(_validations, factors=(1.0, 1.0, 1.004)),
        _found("last validation"),
    ),
    Fault(
        "one validation is NaN",
        Kind.RECIPE,
        "made up",
        _one_validation_lost,
        (Finding(Paired(), "", Blame.RECIPE, words="seed 0 has a non-finite validation loss"),),
    ),
    Fault("validation of BF16 high", Kind.FRAMEWORK, "made up", _bf16_validation, _drift("last validation")),
    Fault("BF16 0.05% high", Kind.FRAMEWORK, "made up", partial(bf16, change=5e-4), _drift("tail gap")),
    Fault(
        "BF16 and the recipe 0.25% high",
        Kind.FRAMEWORK,
        "made up",
        partial(recipe, change=0.0025, control=0.0025),
        _drift("tail gap", blame=Blame.FRAMEWORK_CHANGED),
    ),
    Fault(
        "BF16 high and the recipe with a spike",
        Kind.FRAMEWORK,
        "made up",
        partial(recipe, change=5e-4 + at(80, 88, 0.2), control=5e-4),
        (Finding(Paired(), "first out", Blame.BOTH),),
    ),
    Fault(
        "norms of BF16 twice as large",
        Kind.FRAMEWORK,
        "made up",
        partial(_norms, factor=LATE, control=True, candidate=False),
        _drift("gradient norm"),
    ),
    Fault(
        "norms of BF16 and the recipe twice as large",
        Kind.FRAMEWORK,
        "made up",
        partial(_norms, factor=LATE, control=True),
        _drift("gradient norm", blame=Blame.FRAMEWORK_CHANGED),
    ),
    Fault(
        "spike of BF16 without replicas",
        Kind.FRAMEWORK,
        "made up",
        partial(bf16, change=at(80, 88, 0.3)),
        _drift("first out", look=Paired(NO_REPLICAS, bare=True)),
    ),
    Fault(
        "spike of both without replicas",
        Kind.FRAMEWORK,
        "made up",
        partial(recipe, change=at(80, 88, 0.3), control=at(80, 88, 0.3)),
        _drift("first out", look=Paired(NO_REPLICAS, bare=True), blame=Blame.FRAMEWORK_CHANGED),
    ),
    Fault(
        "trend of BF16",
        Kind.FRAMEWORK,
        "made up",
        partial(bf16, change=at(120, 140, -4e-4) + at(140, 160, 4e-4)),
        _drift("trend", "grows within the tail: +0.080%"),
    ),
    Fault(
        "spike of BF16",
        Kind.FRAMEWORK,
        "made up",
        partial(bf16, change=at(80, 88, 0.0015)),
        _drift("first out", "step 80, seed 0: "),
    ),
    Fault(
        "all losses of both 30% high",
        Kind.FRAMEWORK,
        "made up",
        partial(recipe, change=0.3, control=0.3),
        _drift("tail gap", blame=Blame.FRAMEWORK_CHANGED),
    ),
    Fault(
        "two seeds where the first look needs three",
        Kind.GATE,
        "made up",
        lambda run: tuple(runs[:2] for runs in recipe(run)),
        (Finding(Paired(), "tail gap", Blame.NEITHER, "inconclusive", words="2 seeds; the first stage needs 3"),),
    ),
    Fault(
        "a model that has learnt no context",
        Kind.GATE,
        "made up",
        lambda run: ([run("te-current", s, 10) for s in SEEDS], [run(seed=s, unigram=4.0, bigram=3.0) for s in SEEDS]),
        (
            Finding(
                Paired(),
                "",
                Blame.INPUT,
                "inconclusive",
                words="31% of the way from the unigram to the bigram entropy; 50% is required",
            ),
        ),
    ),
)
