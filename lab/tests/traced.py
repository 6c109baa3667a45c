"""Faults of one operation with the operation that a trace must name, and short ways to trace."""

from __future__ import annotations

import dataclasses

import own_models
import pytest
from faults import arm, gemms, model, moments, operands, places
from faults.looks import add_recipes
from faults.plants import Plant
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.training.variants import Variant
from fp8parity.workload.own import OwnModel
from fp8parity.workload.presets import presets
from fp8parity_lab.tracing import step
from fp8parity_lab.tracing.step import Trace

MICRO = presets()["micro"]
SCHEDULE = dataclasses.replace(MICRO.schedule, rows=1)
UP, Q, OUT = "layers.1.mlp.up_proj", *(f"layers.0.attention.{n}_proj" for n in "qo")

ARM = {
    "gradient of the embedding 2% large": "gradient of weight of embedding",
    "gradient of the head with flipped signs": "wgrad of lm_head",
    "gradient of a quantized weight a tenth large": f"wgrad of {OUT}",
    "queries a tenth large": f"fprop of {Q}",
    "embedding a hundredth large": "output of embedding",
    "mask off by one": f"input of {OUT}",
    "positions of another base": "input 2 of layers.0",
    "residual of the attention dropped": "input of layers.0.mlp_norm",
    "another activation in one block": "input of layers.0.mlp.down_proj",
    "one norm in BF16": "output of layers.0.mlp_norm",
    "head 3% large after the conversion": "fprop of lm_head",
    "hidden label smoothing": "gradient of output of the model",
    "loss rounded to BF16": "the loss",
}
MODEL = {
    "one output shifted": f"fprop of {UP}",
    "embedding gradient flipped": "gradient of weight of embedding",
    "layer not updated": f"wgrad of {UP}",
}
PLACES = {
    "a layer that should be quantized is not": "fprop of layers.0.mlp.up_proj",
    "a layer that should be in BF16 is quantized": f"fprop of {UP}",
}
MOMENTS = {
    "E5M2 for E4M3 in the input of one linear": f"fprop of {UP}",
    "E4M3 for E5M2 in the gradient of one linear": f"dgrad of {UP}",
    "one gradient rounded to nearest": f"dgrad of {UP}",
    "floor for round-up in one linear": f"fprop of {UP}",
    "output of one linear 1% too large": f"fprop of {UP}",
    "weights of queries and keys share a scale": "fprop of layers.1.attention.k_proj",
    "amax of one gradient not recorded": f"dgrad of {UP}",
    "gradient of one linear lost in the first microbatch": f"wgrad of {UP}",
}
"""The first operation over its budget by the name of a fault of one operation."""
EVERYWHERE = {"silent BF16": f"fprop of {Q}", "scale twice too large": f"fprop of {Q}"}
"""Faults of every GEMM: the first one is named."""
UNSEEN = {
    "one scale for the blocks of one linear": "values of a tile are alike",
    "last microbatch of one linear in E5M2": "one microbatch is traced",
    "weight of one linear not quantized anew": "one step is traced",
    "tokens of the next rows": "data",
    "scale 2**-8 off": "smaller than the budget, in the quantizer itself",
}
"""Faults that a trace does not see, with the reason."""
ALL = arm.FAULTS | model.FAULTS | places.FAULTS | moments.FAULTS | operands.FAULTS | gemms.FAULTS


def traced(
    recipe: str, of: OwnModel | None = None, seed: int = 0, variant: Variant | None = None, mode: Mode = Mode.EAGER
) -> Trace:
    """Trace micro on one sequence, or an own model."""
    schedule, corpus = (of.schedule, of.corpus) if of else (SCHEDULE, MICRO.corpus)
    work = of or MICRO.model, RECIPES[recipe], Execution.EMULATED, schedule, corpus, seed
    return step.trace(*work, device=own_models.CPU, mode=mode, variant=variant)


def planted(
    plant: Variant | Plant, recipe: str, patch: pytest.MonkeyPatch, of: OwnModel | None = None, mode: Mode = Mode.EAGER
) -> list[str]:
    """The names of the operations over their budget with a fault."""
    add_recipes(patch)
    if not isinstance(plant, Variant):
        plant(patch)
    found = traced(recipe, of, variant=plant if isinstance(plant, Variant) else None, mode=mode)
    return [o.name for o in found.over]


def over(name: str, patch: pytest.MonkeyPatch, mode: Mode = Mode.EAGER) -> list[str]:
    """The names of the operations over their budget with a fault of the catalogue."""
    recipe = getattr(ALL[name].seen[0].look, "recipe", "bf16")
    return planted(ALL[name].plant, "te-current" if recipe == "bf16" else recipe, patch, mode=mode)
