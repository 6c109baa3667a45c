"""Faults that show along a run: made-up losses, norms and validations beside a golden of the same seeds."""

from __future__ import annotations

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


def runs_of(run: Make, change: Change = 0.0, control: Change = 0.0) -> Pair:
    return [run("te-current", s, 10, change) for s in SEEDS], [run(seed=s, change=control) for s in SEEDS]


def bf16(run: Make, change: Change) -> Pair:
    made = [run(seed=s, change=change) for s in SEEDS]
    return made, made


def _norms(run: Make, factor: Change, *, control: bool = True, candidate: bool = True) -> Pair:
    """Gradient norms times a factor, in the runs of BF16 and of the recipe, or of BF16 as the cell."""
    runs, controls = runs_of(run)

    def changed(rs: list[Trajectory]) -> list[Trajectory]:
        return [r.model_copy(update={"grad_norm": (np.asarray(r.grad_norm) * factor).tolist()}) for r in rs]

    if not candidate:
        return changed(controls), changed(controls)
    return changed(runs), changed(controls) if control else controls


def _validations(run: Make, *factors: float, each: float = 0.0) -> Pair:
    runs, controls = runs_of(run)
    validations = [[(159, 3.5 * f + each * r.seed)] for r, f in zip(runs, factors, strict=True)]
    return [r.model_copy(update={"validation": v}) for r, v in zip(runs, validations, strict=True)], controls


def _bf16_validation(run: Make) -> Pair:
    high = [run(seed=s).model_copy(update={"validation": [(159, 3.5 * 1.0008)]}) for s in SEEDS]
    return high, high


def _without_context(run: Make) -> Pair:
    return [run("te-current", s, 10) for s in SEEDS], [run(seed=s, unigram=4.0, bigram=3.0) for s in SEEDS]


LATE = np.where(np.arange(STEPS) < 100, 1, 2)
RISING = at(120, 140, -0.002) + at(140, 160, 0.002)
SOUND = Paired()
WIDE = Paired(ROW.model_copy(update={"min_step_band": 0.01}))
BARE = Paired(ROW.model_copy(update={"bf16_margin": None}), bare=True)
SPIKE = "the loss left the step band"
GROWS = ("the gap to BF16 changes within the tail by more than the margin", "+0.397% [")
OUT = "the gap to BF16 is outside the margin"
NORMS = ("the gradient norm left its band around BF16's", "gradient norm  steps 96 to 103, seed 0: ")
NO_CONTEXT = "31% of the way from the unigram to the bigram entropy; 50% is required"
VALIDATION = "validations"


def _recipe(plant: Callable[[Make], Pair], place: str, words: Words = "", look: Paired = SOUND) -> Fault:
    return Fault(Kind.RECIPE, plant, (Finding(look, place, Blame.RECIPE_CHANGED, words=words),))


def _curve(change: Change, place: str, words: Words, look: Paired = SOUND) -> Fault:
    return _recipe(partial(runs_of, change=change), place, words, look)


def _drift(plant: Callable[[Make], Pair], place: str, words: Words = "", look: Paired = SOUND) -> Fault:
    finding = Finding(look, place, Blame.FRAMEWORK_CHANGED, "drift", words=words)
    return Fault(Kind.FRAMEWORK, plant, (finding,))


def _unclear(plant: Callable[[Make], Pair], place: str, blame: Blame, words: str) -> Fault:
    return Fault(Kind.GATE, plant, (Finding(SOUND, place, blame, "inconclusive", words=words),))


FAULTS = {
    "spike of the loss": _curve(at(80, 88, 0.004), "loss", SPIKE),
    "last window of the loss": _curve(at(152, 160, 0.006), "loss", OUT),
    "losses too good": _curve(at(0, 160, -0.04), "loss", "such a gain is a fault"),
    "gap that grows within the tail": _curve(RISING, "trend", GROWS, WIDE),
    "gradient norms low": _recipe(partial(_norms, factor=1 - 0.1 * (LATE - 1), control=False), "gradient norm", NORMS),
    "validation loss high": _recipe(
        lambda run: _validations(run, 1.004, 1.004, 1.004, each=1e-4),
        VALIDATION,
        "a validation loss is not BF16's",
    ),
    "one validation loss high": _recipe(lambda run: _validations(run, 1.0, 1.0, 1.004), VALIDATION),
    "validation of BF16 high": _drift(_bf16_validation, VALIDATION),
    "BF16 0.05% high": _drift(partial(bf16, change=5e-4), "tail gap"),
    "BF16 and the recipe 0.25% high": _drift(partial(runs_of, change=0.0025, control=0.0025), "tail gap"),
    "BF16 high and the recipe with a spike": Fault(
        Kind.FRAMEWORK,
        partial(runs_of, change=5e-4 + at(80, 88, 0.2), control=5e-4),
        (Finding(SOUND, "loss", Blame.BOTH),),
    ),
    "norms of BF16 twice as large": _drift(partial(_norms, factor=LATE, candidate=False), "gradient norm"),
    "spike of BF16 without replicas": _drift(partial(bf16, change=at(80, 88, 0.3)), "loss", look=BARE),
    "trend of BF16": _drift(partial(bf16, change=at(120, 140, -4e-4) + at(140, 160, 4e-4)), "trend", "+0.080% ["),
    "spike of BF16": _drift(partial(bf16, change=at(80, 88, 0.0015)), "loss", "steps 80 to 89, seed 0: "),
    "a model that has learnt no context": _unclear(_without_context, "", Blame.INPUT, NO_CONTEXT),
}
