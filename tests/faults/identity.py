"""Faults of records: runs that are not what their name, their schema or their golden says. Recorded runs of micro, changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fp8parity.records.schema import Module, Trajectory

from faults.fault import Blame, Kind
from faults.losses import Change, edit, fault
from faults.runs import Runs, calibration


def _without_control(runs: Runs) -> Runs:
    return [r for r in runs if not r.cell.is_control]


def _other_packages(runs: Runs) -> Runs:
    return [
        r.model_copy(update={"provenance": r.provenance.model_copy(update={"packages": {"torch": "9"}})})
        if r.cell.is_control
        else r
        for r in runs
    ]


def _now(r: Trajectory) -> dict[str, Any]:
    """What a record of today holds besides: the recorded runs are older."""
    return {"partial": False, "hyperparameters": {"beta2": (0.95, 0.95)}}


def _without(name: str, empty: object) -> Change:
    return lambda r: _now(r) | {name: empty}


def _named(recipe: str) -> Callable[[Runs], Runs]:
    """The runs of another recipe under the name of te-current."""

    def plant(runs: Runs) -> Runs:
        others = [r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant]
        return [
            r.model_copy(update={"cell": runs[-1].cell.model_copy(update={"recipe": "te-current"})}) for r in others
        ] + [r for r in runs if r.cell.is_control]

    return plant


def _one_seed(runs: Runs) -> Runs:
    return [r for r in runs for _ in range(3) if r.seed == 0]


def _other_config(r: Trajectory) -> dict[str, Any]:
    first = r.inventory[0]
    return {"inventory": [first.model_copy(update={"config": first.config.replace("e5m2", "e4m3")}), *r.inventory[1:]]}


def _tail(steps: int) -> Change:
    return lambda r: {"schedule": r.schedule | {"tail": steps}}


FAULTS = (
    fault(
        "nothing converted",
        Kind.RECIPE,
        edit(lambda r: {"inventory": []}),
        "the recipe converted no module",
        "error",
        Blame.INPUT,
        source="torchtitan, NeMo AutoModel",
    ),
    *(
        fault(f"runs of {recipe} under the name of te-current", Kind.GATE, _named(recipe), words, "error", Blame.INPUT)
        for recipe, words in (
            (
                "te-block",
                "of layers.0.attention.q_proj has fprop_x: e4m3 1x128 te-pow2, and that of te-current has e4m3 tensor te-fp32",
            ),
            ("ao-rowwise", "has kind: Float8Linear, and that of te-current has EmulatedLinear"),
            ("ao-mxfp8", "has kind: MXFP8Linear, and that of te-current has EmulatedLinear"),
        )
    ),
    fault(
        "one module converted",
        Kind.GATE,
        edit(lambda r: {"inventory": r.inventory[:1]}),
        "converted 1 module, and te-current converts 14 of micro",
        "error",
        Blame.INPUT,
    ),
    fault(
        "other modules converted",
        Kind.GATE,
        edit(lambda r: {"inventory": [m.model_copy(update={"fqn": f"{m.fqn}.x"}) for m in r.inventory]}),
        "converted other modules than te-current converts of micro",
        "error",
        Blame.INPUT,
    ),
    fault(
        "another configuration in one seed",
        Kind.GATE,
        edit(_other_config, seeds=(1,)),
        "seed 1: layers.0.attention.q_proj is not configured as in seed 0",
        "error",
        Blame.INPUT,
    ),
    fault(
        "BF16 with a converted module",
        Kind.GATE,
        edit(lambda r: {"inventory": [Module(fqn="a", kind="b", config="c")]}, recipe=False, control=True),
        "BF16, seed 0: 1 module was converted",
        "error",
        Blame.INPUT,
    ),
    *(
        fault(
            f"run without its {name}",
            Kind.GATE,
            edit(_without(name, empty), recipe=recipe, control=not recipe),
            f"{'' if recipe else 'BF16, '}seed 0: the record lacks {name}, which every complete run holds",
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
    fault(
        "one seed three times",
        Kind.GATE,
        _one_seed,
        "seed 0 is there 3 times; a seed counts once",
        "error",
        Blame.INPUT,
    ),
    *(
        fault(
            f"{word} tail",
            Kind.GATE,
            edit(_tail(n)),
            f"its schedule has tail {n}, and the golden's has 60",
            "stale",
            Blame.INPUT,
        )
        for word, n in (("shorter", 20), ("longer", 120))
    ),
    fault(
        "another learning rate",
        Kind.GATE,
        edit(lambda r: {"schedule": r.schedule | {"lr": 0.003}}, control=True),
        "its schedule has lr 0.003, and the golden's has 0.0015",
        "stale",
        Blame.INPUT,
    ),
    fault(
        "run that stopped early",
        Kind.GATE,
        edit(lambda r: {"loss": r.loss[:5]}),
        "holds 5 losses and 300 norms of 300 steps",
        "error",
        Blame.INPUT,
    ),
    fault(
        "run without a validation",
        Kind.GATE,
        edit(lambda r: {"validation": []}),
        "holds 300 losses and 300 norms",
        "error",
        Blame.INPUT,
    ),
    fault("another schedule", Kind.GATE, edit(lambda r: {"spec_hash": "other"}), "spec hash", "stale", Blame.INPUT),
    fault(
        "another corpus",
        Kind.GATE,
        edit(lambda r: {"fingerprint": "other"}),
        "corpus or its tokenizer changed",
        "stale",
        Blame.INPUT,
    ),
    fault(
        "other initial weights",
        Kind.GATE,
        edit(lambda r: {"initial_weights": "other"}),
        "other initial weights",
        "stale",
        Blame.INPUT,
    ),
    fault(
        "no control",
        Kind.GATE,
        _without_control,
        "no BF16 control of the same machine and packages on record",
        "error",
        Blame.INPUT,
    ),
    fault(
        "control of other packages",
        Kind.GATE,
        _other_packages,
        "no BF16 control of the same machine and packages on record",
        "error",
        Blame.INPUT,
    ),
    fault(
        "seeds that the golden does not hold",
        Kind.GATE,
        edit(lambda r: {"seed": r.seed + 50}, control=True),
        "the golden holds no seeds [50, 51, 52]",
        "no-golden",
        Blame.INPUT,
    ),
    fault(
        "record of another seed",
        Kind.GATE,
        edit(lambda r: {"seed": r.seed + 3}, control=True),
        "other initial weights",
        "stale",
        Blame.INPUT,
    ),
)
