"""Faults of records: runs that are not what their name, their schema or their golden says. Recorded runs of micro, changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fp8parity.records.schema import AnyRecord, Probed, Trajectory
from sessions import measured_in

from faults.fault import Blame, Fault, Kind
from faults.losses import Change, edit, fault, times
from faults.runs import Runs, calibration


def _other_packages(runs: Runs) -> Runs:
    return [
        r.model_copy(update={"provenance": r.provenance.model_copy(update={"packages": {"torch": "9"}})})
        if r.cell.is_control
        else r
        for r in runs
    ]


def _now(r: Trajectory) -> dict[str, Any]:
    """What a record of today holds besides: the recorded runs are older."""
    return {"partial": False, "hyperparameters": {"beta2": (0.95, 0.95), "lr of matrices": (1e-4, 1e-4)}}


def _without(name: str, empty: object) -> Change:
    return lambda r: _now(r) | {name: empty}


def _probed(kept: tuple[int, ...], due: list[int], _: Trajectory) -> dict[str, Any]:
    """Gradient checks, and the steps that were to have one."""
    return {"probes": [PROBES[i] for i in kept], "probe_steps": due}


def _named(recipe: str) -> Callable[[Runs], Runs]:
    """The runs of another recipe under the name of te-current."""

    def plant(runs: Runs) -> Runs:
        others = [r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant]
        return [
            r.model_copy(update={"cell": runs[-1].cell.model_copy(update={"recipe": "te-current"})}) for r in others
        ] + [r for r in runs if r.cell.is_control]

    return plant


def _copied(name: str) -> Callable[[Runs], Runs]:
    """Numbers of the recipe are those of ao-rowwise, which is in the set as well."""
    others = {r.seed: r for r in calibration("micro") if r.cell.recipe == "ao-rowwise" and not r.variant}
    return lambda runs: [
        *(r if r.cell.is_control else r.model_copy(update={name: getattr(others[r.seed], name)}) for r in runs),
        *others.values(),
    ]


def _weights(recipe: str, seed: int, _: Trajectory) -> dict[str, Any]:
    """The weights at the end of a run of micro."""
    [run] = [r for r in calibration("micro") if (r.cell.recipe, r.seed, r.variant) == (recipe, seed, "")]
    return {"final_weights": run.final_weights}


def _mixed(recipe: str, *fields: str, share: float = 1.0, seeds: tuple[int, ...] = (0, 1, 2)) -> Callable[[Runs], Runs]:
    """Numbers of a recipe under the name and inventory of te-current, in a ``share``: the rest is BF16's."""

    def plant(runs: Runs) -> Runs:
        theirs = {r.seed: r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant}
        controls = {r.seed: r for r in runs if r.cell.is_control}
        own = [r for r in calibration("micro") if r.cell.recipe == "te-current" and not r.variant]

        def between(name: str, seed: int) -> Any:
            a, b = (getattr(side[seed], name) for side in (controls, theirs))
            if isinstance(a, dict):
                return {k: a[k] + share * (b[k] - a[k]) for k in a}
            if name == "validation":
                return [(step, v + share * (w - v)) for (step, v), (_, w) in zip(a, b, strict=True)]
            return [v + share * (w - v) for v, w in zip(a, b, strict=True)]

        changed = {r.seed: {f: between(f, r.seed) for f in fields or NUMBERS} for r in own if r.seed in seeds}
        return [*controls.values(), *(r.model_copy(update=changed.get(r.seed, {})) for r in own)]

    return plant


def _with_red_canary(plant: Callable[[Runs], Runs]) -> Callable[[Runs], list[AnyRecord]]:
    """A plant in a session in which BF16's canary of the default model is outside, too."""
    canary = measured_in("xeon", "bf16-tiny-native", "canary")
    values = [replace(m, value=m.value + 0.1 * (m.metric == "output scale")) for m in canary.values]

    def planted(runs: Runs) -> list[AnyRecord]:
        return [*plant(runs), canary.model_copy(update={"values": values, "provenance": runs[0].provenance})]

    return planted


def _tail(steps: int) -> Change:
    return lambda r: {"schedule": r.schedule | {"tail": steps}}


def unlike(plant: Callable[[Runs], Runs], share: float) -> Fault:
    """Return a fault whose first gradients are this share of te-current's gap away."""
    words = (
        f": {share - 1e-4:.4f}"[:5] if share % 1 else f": {share:.0f}",
        "gap to BF16 away from those of sound runs",
    )
    return fault(plant, words, blame=Blame.RECIPE_CHANGED, place="first step")


UNCHANGED = Blame.FRAMEWORK_CHANGED
NO_CONTROL = "no BF16 control of the same machine and packages on record"
NUMBERS = ("loss", "grad_norm", "validation", "first_gradients")
"""What a recipe's run has besides its name, inventory and SQNRs."""
PROBES = [Probed(step=n, sqnr=25.0, worst=20.0, where="layers.0.mlp.up_proj.weight") for n in (10, 299)]
error = partial(fault, kind=Kind.GATE, status="error", blame=Blame.INPUT)
stale = partial(fault, kind=Kind.GATE, status="stale", blame=Blame.INPUT)
FAULTS = {
    "nothing converted": error(
        edit(lambda r: {"inventory": []}),
        "the recipe converted no module",
        kind=Kind.RECIPE,
        source="torchtitan, NeMo AutoModel",
    ),
    **{
        f"runs of {recipe} under the name of te-current": error(_named(recipe), words)
        for recipe, words in (
            (
                "te-block",
                "of layers.0.attention.q_proj has fprop_x: e4m3 1x128 te-pow2, and that of te-current has e4m3 tensor te-fp32",
            ),
            ("ao-rowwise", "has kind: Float8Linear, and that of te-current has EmulatedLinear"),
            ("ao-mxfp8", "has kind: MXFP8Linear, and that of te-current has EmulatedLinear"),
        )
    },
    "one module converted": error(
        edit(lambda r: {"inventory": r.inventory[:1]}), "converted 1 module, and te-current converts 14 of micro"
    ),
    "other modules converted": error(
        edit(lambda r: {"inventory": [m.model_copy(update={"fqn": f"{m.fqn}.x"}) for m in r.inventory]}),
        "converted other modules than te-current converts of micro",
    ),
    **{
        f"run without its {name}": error(
            edit(_without(name, empty), recipe=recipe, control=not recipe),
            f"{'' if recipe else 'BF16, '}seed 0: the record lacks {name}, which every complete run holds",
        )
        for name, empty, recipe in (
            ("first_gradients", {}, True),
            ("hyperparameters", {}, True),
            ("unigram", None, False),
            ("bigram", None, False),
        )
    },
    "runs of another recipe of the set": error(
        _copied("loss"), "the losses of seed 0 equal those of ao-rowwise emulated seed 0 to the bit"
    ),
    **{
        f"{words} of ao-rowwise of the set": error(_copied(name), f"the {words} of seed 0 equal those of ao-rowwise")
        for words, name in (
            ("gradient norms", "grad_norm"),
            ("validation losses", "validation"),
            ("final weights", "final_weights"),
        )
    },
    **{
        f"final weights of another seed of {recipe}": error(
            edit(partial(_weights, recipe, 1), recipe=recipe != "bf16", control=recipe == "bf16", seeds=(0,)),
            f"the final weights of seed 0 equal those of {recipe}{' emulated' * (recipe != 'bf16')} seed 1 to the bit",
            recipe=recipe,
        )
        for recipe in ("bf16", "te-current")
    },
    "final weights of BF16": error(
        edit(lambda r: _weights("bf16", r.seed, r)), "the final weights of seed 0 equal BF16's to the bit"
    ),
    "runs of te-block under the name and inventory of te-current": unlike(_mixed("te-block"), 1.54),
    "one seed of te-block": unlike(_mixed("te-block", seeds=(1,)), 0.83),
    **{
        f"first gradients {share} times as far from BF16 as te-current's": unlike(
            _mixed("te-current", "first_gradients", share=share), 1 - share
        )
        for share in (0.3, -1.0)
    },
    **{
        f"{what} of a changed BF16": fault(
            _with_red_canary(plant),
            (f"parity {status}: BF16 changed: its canary fails, first in output scale @ ", blame),
            status,
            blame,
            place,
            kind=Kind.FRAMEWORK,
        )
        for what, plant, status, blame, place in (
            ("first gradients", _mixed("te-current", "first_gradients", share=0.3), "drift", UNCHANGED, "first step"),
            ("losses 1% high", edit(times(1.01)), "fail", Blame.BOTH, "tail gap"),
        )
    },
    "run without a middle validation": error(
        edit(lambda r: _now(r) | {"validation": [*r.validation[:2], *r.validation[3:]]}, seeds=(1,)),
        "seed 1: the record lacks the validation of step 149",
    ),
    "gradient norms of BF16": error(
        _mixed("te-current", "grad_norm", share=0.0), "the gradient norms of seed 0 equal BF16's to the bit"
    ),
    "validations of BF16": error(
        _mixed("te-current", "validation", share=0.0), "the validation losses of seed 0 equal BF16's to the bit"
    ),
    "one seed without gradient checks": error(
        edit(lambda r: {"probes": PROBES}, seeds=(0, 2)), "seed 1: the record lacks its gradient checks"
    ),
    "run without one hyper-parameter": error(
        edit(
            lambda r: {
                "hyperparameters": {"beta1": (0.9, 0.9)} | {"beta2": (0.95, 0.95)} if r.seed else {"beta1": (0.9, 0.9)}
            }
        ),
        "seed 0: the record lacks the hyper-parameter beta2, which seed 1 holds",
    ),
    **{
        f"run with {which} of its gradient checks": error(
            edit(partial(_probed, kept, due)),
            "seed 0: the record lacks one of its gradient checks",
        )
        for which, kept, due in (
            ("the first alone", (0,), []),
            ("the last alone", (1,), []),
            ("two of three", (0, 1), [10, 77, 299]),
            ("none", (), [10, 77, 299]),
        )
    },
    "first gradients twice as large": error(
        edit(lambda r: _now(r) | {"first_gradients": {name: 2 * norm for name, norm in r.first_gradients.items()}}),
        "seed 0: its first gradients have a norm of ",
    ),
    "first gradients of other names": error(
        edit(lambda r: {"first_gradients": {f"x.{name}": norm for name, norm in r.first_gradients.items()}}),
        "BF16, seed 0 share no first gradient of the same name",
    ),
    "first gradient that is not a number": fault(
        edit(lambda r: {"first_gradients": r.first_gradients | {"norm.weight": math.nan}}),
        "seed 0 has a non-finite first gradient of norm.weight",
    ),
    **{
        f"{word} tail": stale(edit(_tail(n)), f"its schedule has tail {n}, and the golden's has 60")
        for word, n in (("shorter", 20), ("longer", 120))
    },
    "another learning rate": stale(
        edit(lambda r: {"schedule": r.schedule | {"lr": 0.003}}, control=True),
        "its schedule has lr 0.003, and the golden's has 0.0015",
    ),
    "schedule without its learning rate": stale(
        edit(lambda r: {"schedule": {k: v for k, v in r.schedule.items() if k != "lr"}}, control=True),
        "its schedule lacks lr, and the golden's has 0.0015",
    ),
    "optimizer without its learning rate": error(
        edit(lambda r: _now(r) | {"hyperparameters": {"beta2": (0.95, 0.95)}}, control=True),
        "seed 0: the record lacks its learning rate, which every complete run holds",
    ),
    "optimizer of another name": error(
        edit(lambda r: {"optimizer": "muon"}), "BF16, seed 0 has the optimizer adamw, and seed 0 has muon"
    ),
    **{
        f"step skipped by the optimizer of {arms}": fault(
            edit(lambda r: {"hyperparameters": {"updates": (300.0, 299.0)}}, control=blame is Blame.FRAMEWORK),
            f"{name}seed 0: the optimizer has updates 299, and the schedule asks for 300",
            blame=blame,
            kind=Kind.FRAMEWORK,
        )
        for arms, name, blame in (
            ("te-current", "te-current-micro-emulated: loss parity fail: ", Blame.RECIPE),
            ("both arms", "BF16, ", Blame.FRAMEWORK),
        )
    },
    "another corpus": stale(edit(lambda r: {"fingerprint": "other"}), "corpus or its tokenizer changed"),
    "control of other packages": error(_other_packages, NO_CONTROL),
    "seeds that the golden does not hold": stale(
        edit(lambda r: {"seed": r.seed + 50}, control=True),
        "the golden holds no seeds [50, 51, 52]",
        status="no-golden",
    ),
    "record of another seed": stale(edit(lambda r: {"seed": r.seed + 3}, control=True), "other initial weights"),
}
