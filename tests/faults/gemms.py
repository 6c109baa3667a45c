"""Faults of what is multiplied, where it lies, and how it is summed. One linear layer shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from fp8parity.numerics import scaling
from fp8parity.numerics.spec import BF16, Operand
from fp8parity.recipes import RECIPES, Recipe

from faults import plants
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import EXTRA, Gaussian, Numerics
from faults.operands import TOWARDS_ZERO, UNIFORM_LOSS, WHOLE, codes, gemm
from faults.plants import Plant, operand, prepared, results, variant_of

SHAPE = scaling.tile_shape
E5M2_BLOCK, E4M3_TENSOR = Operand("e5m2", (1, 128), "te-pow2"), Operand("e4m3", scale="te-fp32")


recipe, layout, framework = (partial(Fault, kind) for kind in (Kind.RECIPE, Kind.LAYOUT, Kind.FRAMEWORK))


def spec_of(recipe: str, name: str) -> Recipe:
    """The spec of one recipe under the name of another one, on this project's emulation."""
    return replace(RECIPES[recipe], name=RECIPES[EXTRA[name]].name, vendor_emulation=False, adapter="", native=None)


def tiles_of(change: Callable[[tuple[int, int]], tuple[int, int]]) -> Plant:
    """The quantizer takes other tiles than the recipe's."""
    return lambda patch: patch.setattr(scaling, "tile_shape", lambda op, shape: change(SHAPE(op, shape)))


OPERANDS = {
    "E5M2 for E4M3 in the gradient": recipe(
        operand("te-block", dgrad_dy=E5M2_BLOCK, wgrad_dy=E5M2_BLOCK),
        gemm("te-block", "dgrad sqnr @ gaussian"),
        "Megatron Bridge 638",
    ),
    # More exact than the recipe: only an upper limit shows it.
    "E4M3 for E5M2 in the gradient": recipe(
        operand("te-current", dgrad_dy=E4M3_TENSOR, wgrad_dy=E4M3_TENSOR), gemm("te-current", "wgrad sqnr @ gaussian")
    ),
    "silent BF16": recipe(
        plants.unquantized,
        gemm(
            "te-current",
            "fprop worst row sqnr @ gaussian",
            "fprop, dgrad, wgrad: this is BF16's SQNR: nothing was quantized",
        ),
        "torchtitan, NeMo AutoModel",
    ),
    "silent BF16 in one GEMM": recipe(
        operand("te-current", wgrad_dy=BF16, wgrad_x=BF16),
        gemm("te-current", "wgrad sqnr @ gaussian", "wgrad: this is BF16's SQNR: nothing was quantized"),
        "TE documentation",
    ),
    "rowwise that is tensorwise": recipe(
        lambda patch: patch.setitem(RECIPES, "core-rowwise", spec_of("ao-tensorwise", "core-rowwise")),
        gemm("core-rowwise", "dgrad sqnr @ gaussian"),
        "NeMo AutoModel",
    ),
    "blocks of 32 for blocks of 16": recipe(
        variant_of("te-nvfp4", "fprop_x", tile=(1, 32)), gemm("te-nvfp4", "fprop gain @ gaussian", look=Gaussian)
    ),
    "one scale for blocks": recipe(
        variant_of("te-block", "fprop_x", tile=(0, 0)), gemm("te-block", "fprop sqnr @ uneven-row"), "NeMo AutoModel"
    ),
    "Hadamard of one side only": recipe(
        variant_of("te-nvfp4", "wgrad_x", hadamard=False),
        gemm("te-nvfp4", "wgrad sqnr @ gaussian", "its operands do not belong together"),
    ),
    "the package changed a default": recipe(
        lambda p: p.setattr(
            "fp8parity.recipes.adapters.torchao.default_spec", lambda r: RECIPES["ao-tensorwise"].linear
        ),
        (
            Finding(
                Numerics("defaults", "ao-rowwise"),
                "differing default @ dgrad_dy",
                Blame.RECIPE,
                cause="of 6 operands are others",
            ),
        ),
        "Megatron Bridge 638",
    ),
    "gradients without a scale": recipe(
        prepared(lambda op: op.format == "e5m2", lambda x, op, real: plants.PREPARE(x, op, torch.ones(()))),
        gemm("te-current", "dgrad sqnr @ near-zero"),
    ),
}


LAYOUT = {
    "tiles of rows and columns exchanged": layout(
        tiles_of(lambda size: size[::-1]), codes("te-mxfp8", "differing scales @ fprop_x")
    ),
    "tiles twice as wide": layout(
        tiles_of(lambda size: (size[0], 2 * size[1])), codes("te-block", "differing codes @ wgrad_dy")
    ),
    "row scales on the wrong axis": layout(
        prepared(lambda op: op.tile == (1, 0), plants.transposed),
        gemm("core-rowwise", "fprop sqnr @ uneven-row"),
        "torchao 4038",
    ),
    "garbage in the tail rows": layout(
        prepared(lambda op: op.tile == (1, 128), plants.without_tail),
        gemm("te-block", "fprop worst row sqnr @ odd-shape"),
        "torchao 4186",
    ),
    "padding counts for the amax": layout(
        plants.padded_with(1e4), gemm("te-block", "wgrad sqnr @ odd-shape"), "TE 3070"
    ),
    "scales one tile off": layout(
        plants.decoded_by(lambda d: d.roll(1, 0)), gemm("te-block", "wgrad sqnr @ heavy-tailed"), "torchao 4229"
    ),
    "a slice of wgrad lost": layout(
        results(plants.lost_slice),
        gemm("te-current", "wgrad worst row sqnr @ gaussian", "wgrad: its worst row"),
        "TE 1554, 1616",
    ),
    "one token 10% too large": layout(
        results(lambda y: y[7].mul_(1.1)),
        gemm("te-current", "fprop worst row sqnr @ gaussian", "fprop: its worst row", hidden=WHOLE),
    ),
    "one feature 10% too large": layout(
        results(lambda y: y[:, 7].mul_(1.1)),
        gemm("te-block", "wgrad worst column sqnr @ gaussian", "fprop: its worst column", hidden=WHOLE),
    ),
}

KERNELS = {
    "results lose bits": framework(
        results(plants.cut),
        gemm("te-current", "fprop gain @ gaussian", UNIFORM_LOSS, hidden=WHOLE),
    ),
    "ten bits of an accumulator": framework(
        plants.short_accumulator(10), gemm("te-current", "fprop gain @ gaussian", TOWARDS_ZERO), "DeepGEMM 37"
    ),
}
FAULTS = OPERANDS | LAYOUT | KERNELS
