"""Faults of runs and of their records: recorded losses of micro, changed, and judged by the project's own goldens and policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from fp8parity.records.schema import AnyRecord, NonFinite, Probed, Trajectory
from trajectories import OTHER_NORM

from faults.fault import Blame, Fault, Finding, Kind, Words
from faults.runs import Edited, Runs, calibration

Change = Callable[[Trajectory], dict[str, Any]]


def edit(
    change: Change, *, recipe: bool = True, control: bool = False, seeds: tuple[int, ...] = (0, 1, 2)
) -> Callable[[Runs], Runs]:
    """A plant that replaces fields in the runs of the recipe or of the control."""

    def plant(runs: Runs) -> Runs:
        return [
            r.model_copy(update=change(r)) if r.seed in seeds and (control if r.cell.is_control else recipe) else r
            for r in runs
        ]

    return plant


def times(factor: float, start: int = 0) -> Change:
    """Losses times a factor from a step on, with the validations. Norms differ, too, but hardly."""

    def change(r: Trajectory) -> dict[str, Any]:
        values = np.asarray(r.loss) * np.where(np.arange(r.steps) >= start, factor, 1.0)
        validation = [(step, v * factor) for step, v in r.validation]
        return {"loss": values.tolist(), "validation": validation, "grad_norm": [n + OTHER_NORM for n in r.grad_norm]}

    return change


def _nan_at(step: int) -> Change:
    where = NonFinite(step=step, where="gradient of layers.0.mlp.up_proj.weight (1 of 21 parameters)")
    return lambda r: {"loss": [*r.loss[:step], math.nan], "grad_norm": r.grad_norm[: step + 1], "non_finite": where}


def _other_batches(runs: Runs) -> Runs:
    """The recipe's runs had the batches of another seed."""
    mine = {r.seed: r for r in runs if not r.cell.is_control}
    fields = ("loss", "grad_norm", "validation")
    return [
        r if r.cell.is_control else r.model_copy(update={f: getattr(mine[(r.seed + 1) % 3], f) for f in fields})
        for r in runs
    ]


def _same_as_bf16(runs: Runs) -> Runs:
    control = {r.seed: r.loss for r in runs if r.cell.is_control}
    return [r if r.cell.is_control else r.model_copy(update={"loss": control[r.seed]}) for r in runs]


def _replica_of_bf16(runs: Runs) -> Runs:
    """The recipe's runs are those of BF16 from weights that differ by one ulp."""
    fields = ("loss", "grad_norm", "validation", "first_gradients")
    replicas = {r.seed: {f: getattr(r, f) for f in fields} for r in calibration("micro") if r.variant == "replica1"}
    return [r if r.cell.is_control else r.model_copy(update=replicas[r.seed]) for r in runs]


def _quantization_lost(r: Trajectory) -> dict[str, Any]:
    """The gradient has 25 dB to BF16's in step 10, and equals it in the last step."""
    return {
        "probes": [
            Probed(step=step, sqnr=sqnr, worst=sqnr - 5, where="layers.1.mlp.up_proj.weight")
            for step, sqnr in ((10, 25.0), (r.steps - 1, math.inf))
        ]
    }


def fault(
    plant: Callable[[Runs], Sequence[AnyRecord]],
    words: Words,
    status: str = "fail",
    blame: Blame = Blame.RECIPE,
    place: str = "",
    *,
    kind: Kind = Kind.RECIPE,
    recipe: str = "te-current",
    source: str = "made up",
) -> Fault:
    return Fault(kind, plant, (Finding(Edited(recipe), place, blame, status, words=words),), source)


moved = partial(fault, kind=Kind.FRAMEWORK, blame=Blame.RECIPE_CHANGED, place="loss")


FAULTS = {
    "gradient is NaN at one step": fault(
        edit(_nan_at(7), seeds=(1,)), "seed 1 is non-finite at step 7: gradient of layers.0", source="torchtitan 1056"
    ),
    "targets leak in a recipe": moved(edit(times(0.5, 40)), "such a gain is a fault", kind=Kind.MODEL),
    **{
        name: fault(
            edit(times(0.5, 40), control=True),
            "",
            "drift",
            Blame.FRAMEWORK_CHANGED,
            "loss",
            kind=Kind.MODEL,
            recipe=recipe,
        )
        for name, recipe in (("targets leak in every run", "te-current"), ("targets leak in BF16", "bf16"))
    },
    "batches of another seed": moved(
        _other_batches, "the gradient of the first step is not the one that this recipe gives"
    ),
    "slice of steps repeated": moved(
        edit(lambda r: {"loss": [*r.loss[:60], *r.loss[50:-10]]}), "the loss left the step band"
    ),
    "losses 1% high": moved(
        edit(times(1.01)), "the gap to BF16 is outside the margin", kind=Kind.RECIPE, place="tail gap"
    ),
    "losses equal BF16's to the bit": fault(
        _same_as_bf16, "equal BF16's to the bit: nothing was quantized", source="torchtitan, NeMo AutoModel"
    ),
    "runs of a replica of BF16": fault(_replica_of_bf16, "of its noise from BF16, and a sound run at least 0.1"),
    "quantization lost after the first validation": fault(
        edit(_quantization_lost),
        "gradient sqnr rise, step 299, seed 0: inf dB is above [-15, 3]",
        blame=Blame.RECIPE_CHANGED,
        place="later gradients",
    ),
}
