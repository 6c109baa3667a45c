"""Measure whether the result of a row depends on the other rows of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from fp8parity.checks.protocol import RunSpec, linear_pass
from fp8parity.numerics import prng
from fp8parity.numerics.operands import sqnr
from fp8parity.numerics.spec import GEMMS
from fp8parity.recipes import Recipe
from fp8parity.records.cell import DEFAULT_MODEL, Execution
from fp8parity.training.hardware import reset_state
from fp8parity.workload.presets import presets
from torch import Tensor

WIDTH, DRAWS, CALIBRATION = 256, 8, 3
"""The features of the linear, the rows that are tried, and the passes that update a delayed scale before."""
PADDED = 32
"""The least rows of a GEMM: the row alone is a batch whose other rows are zero, as engines pad it."""


class Batch(NamedTuple):
    """The rows of a batch that are not zero, where the row is, and the factor of the others."""

    rows: int
    at: int
    factor: float = 1.0


ALONE = Batch(1, 0)
BATCHES = {"of 8": Batch(8, 5), "of 64": Batch(64, 37), "next to 100x": Batch(2, 1, 100.0)}
"""What is compared with the row alone."""
RULES = (
    (lambda gemm, op: not op.quantized, "yes: BF16"),
    (lambda gemm, op: op.history > 0, "yes: scale of earlier steps"),
    (lambda gemm, op: op.stochastic, "no: random rounding"),
    (lambda gemm, op: op.tile == (0, 0) or op.scale == "nvfp4", "no: a scale of the tensor"),
    (lambda gemm, op: gemm == "wgrad", "no: scales along tokens"),
    (lambda gemm, op: op.tile[0] == 1, "yes: scales inside the row"),
)
"""Whether other rows can change a row's result, by the operand that holds rows: the first rule that holds."""


def theory(recipe: Recipe, gemm: str) -> str:
    """Say whether the recipe's scales let other rows change a row's result, and why."""
    op = getattr(recipe.linear, {"fprop": "fprop_x", "dgrad": "dgrad_dy", "wgrad": "wgrad_x"}[gemm])
    return next(text for holds, text in RULES if holds(gemm, op))


def measure(recipe: Recipe, execution: Execution, device: torch.device) -> Mapping[tuple[str, str], float]:
    """Return, by GEMM and batch, the least SQNR in dB of a row to itself alone: infinite if all bits are equal."""
    preset = presets()[DEFAULT_MODEL]
    spec = RunSpec(recipe, execution, device, preset.model, preset.schedule)
    found = {(gemm, name): math.inf for gemm in GEMMS for name in BATCHES}
    try:
        for draw in range(DRAWS):
            alone = _results(spec, ALONE, draw)
            for name, batch in BATCHES.items():
                for gemm, result in _results(spec, batch, draw).items():
                    found[gemm, name] = min(found[gemm, name], sqnr(alone[gemm], result))
    finally:
        reset_state()
    return found


def _results(spec: RunSpec, batch: Batch, draw: int) -> dict[str, Tensor]:
    """Return the row's fprop and dgrad, and its contribution to wgrad: other output gradients are zero there."""
    x, dy = (_rows(kind, batch, draw) for kind in ("x", "dy"))
    own = torch.zeros_like(dy)
    own[batch.at] = dy[batch.at]
    both, one = _pass(spec, x, dy, draw), _pass(spec, x, own, draw)
    return {"fprop": both["fprop"][batch.at], "dgrad": both["dgrad"][batch.at], "wgrad": one["wgrad"]}


def _pass(spec: RunSpec, x: Tensor, dy: Tensor, draw: int) -> dict[str, Tensor]:
    """Return the results of a new linear, whose delayed scales are those of the same earlier passes."""
    converted = spec.linear(_normal("w", draw, WIDTH).to(spec.device), tokens=PADDED)
    for n in range(CALIBRATION if spec.recipe.linear.delayed else 0):
        linear_pass(converted, *(_normal(f"earlier {k}", n, PADDED).to(spec.device) for k in ("x", "dy")))
    return linear_pass(converted, *(t.clone().to(spec.device) for t in (x, dy)))


def _normal(kind: str, draw: int, rows: int) -> Tensor:
    return prng.normal(prng.stream("engines", kind, draw), rows * WIDTH).view(rows, WIDTH).bfloat16()


def _rows(kind: str, batch: Batch, draw: int) -> Tensor:
    """Return a batch with the draw's row at its place, and zeros after its rows."""
    made = torch.zeros(max(PADDED, batch.rows), WIDTH, dtype=torch.bfloat16)
    made[: batch.rows] = _normal(f"{kind} others", draw, batch.rows) * batch.factor
    made[batch.at] = _normal(kind, draw, 1)[0]
    return made
