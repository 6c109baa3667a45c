"""Faults of runs and of their records: recorded losses of micro, changed, and judged by the project's own goldens and policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.records.schema import SCHEMA, Module, NonFinite, Trajectory
from torch import Tensor

from faults.fault import Blame, Fault, Finding, Kind, Words
from faults.runs import Edited, FirstGradients, Runs, calibration

Change = Callable[[Trajectory], dict[str, Any]]


def edit(change: Change, *, recipe: bool = True, control: bool = False, seeds: tuple[int, ...] = (0, 1, 2)) -> Callable[[Runs], Runs]:
    """A plant that replaces fields in the runs of the recipe or of the control."""

    def plant(runs: Runs) -> Runs:
        return [r.model_copy(update=change(r)) if r.seed in seeds and (control if r.cell.is_control else recipe) else r for r in runs]

    return plant


def _times(factor: float, start: int = 0) -> Change:
    """Losses times a factor from a share of the steps on, with the last validation."""

    def change(r: Trajectory) -> dict[str, Any]:
        values = np.asarray(r.loss) * np.where(np.arange(r.steps) >= start, factor, 1.0)
        return {"loss": values.tolist(), "validation": [(step, v * factor) for step, v in r.validation]}

    return change


def _nan_at(step: int) -> Change:
    where = NonFinite(step=step, where="gradient of layers.0.mlp.up_proj.weight (1 of 21 parameters)")
    return lambda r: {"loss": [*r.loss[:step], math.nan], "grad_norm": r.grad_norm[: step + 1], "non_finite": where}


def _other_batches(runs: Runs) -> Runs:
    """The recipe's runs had the batches of another seed."""
    mine = {r.seed: r for r in runs if not r.cell.is_control}
    fields = ("loss", "grad_norm", "validation")
    return [r if r.cell.is_control else r.model_copy(update={f: getattr(mine[(r.seed + 1) % 3], f) for f in fields}) for r in runs]


def _same_as_bf16(runs: Runs) -> Runs:
    control = {r.seed: r for r in runs if r.cell.is_control}
    return [r.model_copy(update={"loss": control[r.seed].loss}) for r in runs]


def _without_control(runs: Runs) -> Runs:
    return [r for r in runs if not r.cell.is_control]


def _other_packages(runs: Runs) -> Runs:
    return [
        r.model_copy(update={"provenance": r.provenance.model_copy(update={"packages": {"torch": "9"}})}) if r.cell.is_control else r
        for r in runs
    ]


def _now(r: Trajectory) -> dict[str, Any]:
    """What a record of today holds besides: the recorded runs are older."""
    return {"schema_version": SCHEMA, "hyperparameters": {"beta2": (0.95, 0.95)}}


def _without(name: str, empty: object) -> Change:
    return lambda r: _now(r) | {name: empty}


def _named(recipe: str) -> Callable[[Runs], Runs]:
    """The runs of another recipe under the name of te-current."""

    def plant(runs: Runs) -> Runs:
        others = [r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant]
        return [r.model_copy(update={"cell": runs[-1].cell.model_copy(update={"recipe": "te-current"})}) for r in others] + [
            r for r in runs if r.cell.is_control
        ]

    return plant


def _one_seed(runs: Runs) -> Runs:
    return [r for r in runs for _ in range(3) if r.seed == 0]


def _other_config(r: Trajectory) -> dict[str, Any]:
    first = r.inventory[0]
    return {"inventory": [first.model_copy(update={"config": first.config.replace("e5m2", "e4m3")}), *r.inventory[1:]]}


def _fault(
    name: str,
    kind: Kind,
    plant: Callable[[Runs], Runs],
    words: Words,
    status: str = "fail",
    blame: Blame = Blame.RECIPE,
    place: str = "",
    *,
    recipe: str = "te-current",
    source: str = "made up",
) -> Fault:
    return Fault(name, kind, source, plant, (Finding(Edited(recipe), place, blame, status, words=words),))


def _tail(steps: int) -> Change:
    return lambda r: {"schedule": r.schedule | {"tail": steps}}


def _with(values: list[float], step: int, value: float) -> list[float]:
    """``values`` with another value at a step."""
    return [*values[:step], value, *values[step + 1 :]]


TOO_GOOD = "such a gain is a fault"
RUNS = (
    _fault(
        "gradient is NaN at one step",
        Kind.RECIPE,
        edit(_nan_at(7), seeds=(1,)),
        "seed 1 is non-finite at step 7: gradient of layers.0",
        source="torchtitan 1056",
    ),
    _fault(
        "BF16 is NaN at one step",
        Kind.FRAMEWORK,
        edit(_nan_at(7), recipe=False, control=True),
        "BF16, seed 0 is non-finite at step 7",
        blame=Blame.FRAMEWORK,
    ),
    _fault(
        "losses are NaN, and the record does not say so",
        Kind.GATE,
        edit(lambda r: {"loss": [math.nan] * r.steps}),
        "seed 0 has a non-finite loss or gradient norm at step 0",
    ),
    _fault(
        "one loss is NaN, and the record does not say so",
        Kind.GATE,
        edit(lambda r: {"loss": _with(r.loss, 40, math.nan)}, seeds=(1,)),
        "seed 1 has a non-finite loss or gradient norm at step 40",
    ),
    _fault(
        "one gradient norm is NaN",
        Kind.GATE,
        edit(lambda r: {"grad_norm": _with(r.grad_norm, 40, math.nan)}, seeds=(2,)),
        "seed 2 has a non-finite loss or gradient norm at step 40",
    ),
    _fault(
        "one loss of BF16 is infinite",
        Kind.GATE,
        edit(lambda r: {"loss": _with(r.loss, 40, math.inf)}, recipe=False, control=True),
        "BF16, seed 0 has a non-finite loss or gradient norm at step 40",
        blame=Blame.FRAMEWORK,
    ),
    _fault(
        "last validation is NaN",
        Kind.RECIPE,
        edit(lambda r: {"validation": [*r.validation[:-1], (r.steps - 1, math.nan)]}, seeds=(2,)),
        "seed 2 has a non-finite validation loss",
    ),
    _fault("targets leak in a recipe", Kind.MODEL, edit(_times(0.5, 40)), TOO_GOOD, blame=Blame.RECIPE_MOVED, place="first out"),
    _fault(
        "targets leak in every run", Kind.MODEL, edit(_times(0.5, 40), control=True), "", "drift", Blame.FRAMEWORK_NOT_RECIPE, "first out"
    ),
    _fault(
        "targets leak in BF16",
        Kind.MODEL,
        edit(_times(0.5, 40), control=True),
        "",
        "drift",
        Blame.FRAMEWORK_MOVED,
        "first out",
        recipe="bf16",
    ),
    _fault(
        "batches of another seed",
        Kind.FRAMEWORK,
        _other_batches,
        "the gradient of the first step is not the one that this recipe gives",
        blame=Blame.RECIPE_MOVED,
        place="first out",
    ),
    _fault(
        "slice of steps repeated",
        Kind.FRAMEWORK,
        edit(lambda r: {"loss": [*r.loss[:60], *r.loss[50:-10]]}),
        "the loss left the step band",
        blame=Blame.RECIPE_MOVED,
        place="first out",
    ),
    _fault(
        "losses 1% high",
        Kind.RECIPE,
        edit(_times(1.01)),
        "the gap to BF16 is outside the margin",
        blame=Blame.RECIPE_MOVED,
        place="tail gap",
    ),
    _fault(
        "losses equal BF16's to the bit",
        Kind.RECIPE,
        _same_as_bf16,
        "the losses equal BF16's to the bit: nothing was quantised",
        source="torchtitan, NeMo AutoModel",
    ),
    _fault(
        "optimiser with another beta2",
        Kind.FRAMEWORK,
        edit(lambda r: {"hyperparameters": {"beta2": (0.95, 0.9)}}),
        "the optimiser has beta2 0.9, and the schedule asks for 0.95",
    ),
    _fault(
        "optimiser of BF16 with another beta2",
        Kind.FRAMEWORK,
        edit(lambda r: {"hyperparameters": {"beta2": (0.95, 0.9)}}, recipe=False, control=True),
        "BF16, seed 0: the optimiser has beta2 0.9",
        blame=Blame.FRAMEWORK,
    ),
    _fault(
        "nothing converted",
        Kind.RECIPE,
        edit(lambda r: {"inventory": []}),
        "the recipe converted no module",
        "error",
        Blame.INPUT,
        source="torchtitan, NeMo AutoModel",
    ),
    *(
        _fault(f"runs of {recipe} under the name of te-current", Kind.GATE, _named(recipe), words, "error", Blame.INPUT)
        for recipe, words in (
            ("te-block", "of layers.0.attention.q_proj has fprop_x: e4m3 1x128 te-pow2, and that of te-current has e4m3 tensor te-fp32"),
            ("ao-rowwise", "has kind: Float8Linear, and that of te-current has EmulatedLinear"),
            ("ao-mxfp8", "has kind: MXFP8Linear, and that of te-current has EmulatedLinear"),
        )
    ),
    _fault(
        "one module converted",
        Kind.GATE,
        edit(lambda r: {"inventory": r.inventory[:1]}),
        "converted 1 module, and te-current converts 14 of micro",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "other modules converted",
        Kind.GATE,
        edit(lambda r: {"inventory": [m.model_copy(update={"fqn": f"{m.fqn}.x"}) for m in r.inventory]}),
        "converted other modules than te-current converts of micro",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "another configuration in one seed",
        Kind.GATE,
        edit(_other_config, seeds=(1,)),
        "seed 1: layers.0.attention.q_proj is not configured as in seed 0",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "BF16 with a converted module",
        Kind.GATE,
        edit(lambda r: {"inventory": [Module(fqn="a", kind="b", config="c")]}, recipe=False, control=True),
        "BF16, seed 0: 1 module was converted",
        "error",
        Blame.INPUT,
    ),
    *(
        _fault(
            f"run without its {name}",
            Kind.GATE,
            edit(_without(name, empty), recipe=recipe, control=not recipe),
            f"{'' if recipe else 'BF16, '}seed 0: the record lacks {name}, which every run of its schema holds",
            "error",
            Blame.INPUT,
        )
        for name, empty, recipe in (
            ("first_gradients", {}, True),
            ("hyperparameters", {}, True),
            ("unigram", None, False),
            ("bigram", None, False),
        )
    ),
    _fault("one seed three times", Kind.GATE, _one_seed, "seed 0 is there 3 times; a seed counts once", "error", Blame.INPUT),
    *(
        _fault(f"{word} tail", Kind.GATE, edit(_tail(n)), f"its schedule has tail {n}, and the golden's has 60", "stale", Blame.INPUT)
        for word, n in (("shorter", 20), ("longer", 120))
    ),
    _fault(
        "another learning rate",
        Kind.GATE,
        edit(lambda r: {"schedule": r.schedule | {"lr": 0.003}}, control=True),
        "its schedule has lr 0.003, and the golden's has 0.0015",
        "stale",
        Blame.INPUT,
    ),
    _fault(
        "run that stopped early",
        Kind.GATE,
        edit(lambda r: {"loss": r.loss[:5]}),
        "holds 5 losses and 300 norms of 300 steps",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "run without a validation", Kind.GATE, edit(lambda r: {"validation": []}), "holds 300 losses and 300 norms", "error", Blame.INPUT
    ),
    _fault("another schedule", Kind.GATE, edit(lambda r: {"spec_hash": "other"}), "spec hash", "stale", Blame.INPUT),
    _fault("another corpus", Kind.GATE, edit(lambda r: {"fingerprint": "other"}), "corpus or its tokeniser changed", "stale", Blame.INPUT),
    _fault("other initial weights", Kind.GATE, edit(lambda r: {"initial_weights": "other"}), "other initial weights", "stale", Blame.INPUT),
    _fault(
        "no control",
        Kind.GATE,
        _without_control,
        "no BF16 control of the same machine and packages on record",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "control of other packages",
        Kind.GATE,
        _other_packages,
        "no BF16 control of the same machine and packages on record",
        "error",
        Blame.INPUT,
    ),
    _fault(
        "seeds that the golden does not hold",
        Kind.GATE,
        edit(lambda r: {"seed": r.seed + 50}, control=True),
        "the golden holds no seeds [50, 51, 52]",
        "no-golden",
        Blame.INPUT,
    ),
    _fault(
        "record of another seed",
        Kind.GATE,
        edit(lambda r: {"seed": r.seed + 3}, control=True),
        "other initial weights",
        "stale",
        Blame.INPUT,
    ),
)


def scaled(names: tuple[str, ...], factor: float, outputs: int) -> Callable[[pytest.MonkeyPatch], object]:
    """The operands ``names`` of linears whose weight has ``outputs`` outputs decode to ``factor`` times what they should."""
    real = EmulatedLinear.operand

    def operand(self: EmulatedLinear, name: str, x: Tensor) -> Any:
        data, outer = real(self, name, x)
        return (data, outer * factor) if name in names and self.out_features == outputs else (data, outer)

    return lambda patch: patch.setattr(EmulatedLinear, "operand", operand)


def _first(name: str, recipe: str, plant: Callable[[pytest.MonkeyPatch], object], words: str, source: str = "made up") -> Fault:
    return Fault(name, Kind.RECIPE, source, plant, (Finding(FirstGradients(recipe), "first step", Blame.RECIPE, words=words),))


FIRST_STEPS = (
    _first(
        "weight gradients of the first MLPs lost",
        "te-block",
        scaled(("wgrad_dy",), 0.0, 512),
        "_proj.weight 0.0000x BF16's, expected 0.9300 to 1.0700",
        "TE 1554, 1616",
    ),
    _first("gradient scale off by a tenth", "te-current", scaled(("dgrad_dy",), 1.1, 512), "x BF16's, expected 0.9300 to 1.0700"),
    _first(
        "weight scale off by two",
        "te-current",
        scaled(("fprop_w",), 0.5, 64),
        "attention.q_proj.weight 0.2308x BF16's, expected 0.9300 to 1.0700",
    ),
)
FAULTS = (*RUNS, *FIRST_STEPS)
