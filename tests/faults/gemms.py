"""Faults of what is multiplied, where it lies, and how it is summed. One linear layer shows them."""

from __future__ import annotations

from dataclasses import replace

import torch
from fp8parity.numerics.spec import BF16, Operand
from fp8parity.recipes import RECIPES, Recipe

from faults import plants
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import EXTRA, Measured, Numerics
from faults.operands import TOWARDS_ZERO, UNIFORM_LOSS, WHOLE, gemm
from faults.plants import operand, prepared, results, variant_of

E5M2_BLOCK, E4M3_TENSOR = Operand("e5m2", (1, 128), "te-pow2"), Operand("e4m3", scale="te-fp32")


def spec_of(recipe: str, name: str) -> Recipe:
    """The spec of one recipe under the name of another one, on this project's emulation."""
    return replace(RECIPES[recipe], name=RECIPES[EXTRA[name]].name, vendor_emulation=False, adapter="", native=None)


OPERANDS = (
    Fault(
        "E5M2 for E4M3 in the gradient",
        Kind.RECIPE,
        "Megatron Bridge 638",
        operand("te-block", dgrad_dy=E5M2_BLOCK, wgrad_dy=E5M2_BLOCK),
        gemm("te-block", "dgrad sqnr @ gaussian"),
    ),
    Fault(
        "E4M3 for E5M2 in the gradient",
        Kind.RECIPE,
        "made up",
        operand("te-current", dgrad_dy=E4M3_TENSOR, wgrad_dy=E4M3_TENSOR),
        gemm("te-current", "wgrad sqnr @ gaussian"),
        note="More exact than the recipe: only an upper limit shows it.",
    ),
    Fault(
        "silent BF16",
        Kind.RECIPE,
        "torchtitan, NeMo AutoModel",
        plants.unquantized,
        (
            *gemm(
                "te-current",
                "fprop worst row sqnr @ gaussian",
                "fprop, dgrad, wgrad: this is BF16's SQNR: nothing was quantized",
            ),
            Finding(Measured("gradients", "te-current"), "total sqnr", Blame.RECIPE),
        ),
    ),
    Fault(
        "silent BF16 in one GEMM",
        Kind.RECIPE,
        "TE documentation",
        operand("te-current", wgrad_dy=BF16, wgrad_x=BF16),
        gemm("te-current", "wgrad sqnr @ gaussian", "wgrad: this is BF16's SQNR: nothing was quantized"),
    ),
    Fault(
        "rowwise that is tensorwise",
        Kind.RECIPE,
        "NeMo AutoModel",
        lambda patch: patch.setitem(RECIPES, "core-rowwise", spec_of("ao-tensorwise", "core-rowwise")),
        gemm("core-rowwise", "dgrad sqnr @ gaussian"),
    ),
    Fault(
        "blocks of 32 for blocks of 16",
        Kind.RECIPE,
        "made up",
        variant_of("te-nvfp4", "fprop_x", tile=(1, 32)),
        gemm("te-nvfp4", "fprop gain @ gaussian"),
    ),
    Fault(
        "one scale for blocks",
        Kind.RECIPE,
        "NeMo AutoModel",
        variant_of("te-block", "fprop_x", tile=(0, 0)),
        gemm("te-block", "fprop sqnr @ uneven-row"),
    ),
    Fault(
        "Hadamard of one side only",
        Kind.RECIPE,
        "made up",
        variant_of("te-nvfp4", "wgrad_x", hadamard=False),
        gemm("te-nvfp4", "wgrad sqnr @ gaussian"),
    ),
    Fault(
        "the package changed a default",
        Kind.RECIPE,
        "Megatron Bridge 638",
        lambda p: p.setattr(
            "fp8parity.recipes.adapters.torchao.default_spec", lambda r: RECIPES["ao-tensorwise"].linear
        ),
        (Finding(Numerics("defaults", "ao-rowwise"), "differing default @ dgrad_dy", Blame.RECIPE),),
    ),
    Fault(
        "gradients without a scale",
        Kind.RECIPE,
        "made up",
        prepared(lambda op: op.format == "e5m2", lambda x, op, real: plants.PREPARE(x, op, torch.ones(()))),
        gemm("te-current", "dgrad sqnr @ near-zero"),
    ),
)


LAYOUT = (
    Fault(
        "row scales on the wrong axis",
        Kind.LAYOUT,
        "torchao 4038",
        prepared(lambda op: op.tile == (1, 0), plants.transposed),
        gemm("core-rowwise", "fprop sqnr @ uneven-row"),
    ),
    Fault(
        "garbage in the tail rows",
        Kind.LAYOUT,
        "torchao 4186",
        prepared(lambda op: op.tile == (1, 128), plants.without_tail),
        gemm("te-block", "fprop worst row sqnr @ odd-shape"),
    ),
    Fault(
        "padding counts for the amax",
        Kind.LAYOUT,
        "TE 3070",
        plants.padded_with(1e4),
        gemm("te-block", "wgrad sqnr @ odd-shape"),
    ),
    Fault(
        "scales one tile off",
        Kind.LAYOUT,
        "torchao 4229",
        plants.decoded_by(lambda d: d.roll(1, 0)),
        gemm("te-block", "wgrad sqnr @ heavy-tailed"),
    ),
    Fault(
        "a slice of wgrad lost",
        Kind.LAYOUT,
        "TE 1554, 1616",
        results(plants.lost_slice),
        gemm("te-current", "wgrad worst row sqnr @ gaussian"),
    ),
    Fault(
        "one token 10% too large",
        Kind.LAYOUT,
        "made up",
        results(lambda y: y[7].mul_(1.1)),
        gemm("te-current", "fprop worst row sqnr @ gaussian", "some rows (tokens)", hidden=WHOLE),
    ),
    Fault(
        "one token half too large",
        Kind.LAYOUT,
        "made up",
        results(lambda y: y[7].mul_(1.5)),
        gemm("te-nvfp4", "dgrad worst row sqnr @ gaussian", "wgrad: its worst row"),
    ),
    Fault(
        "one feature 10% too large",
        Kind.LAYOUT,
        "made up",
        results(lambda y: y[:, 7].mul_(1.1)),
        gemm(
            "te-block", "wgrad worst column sqnr @ gaussian", "some columns (output features) are wrong", hidden=WHOLE
        ),
    ),
    Fault(
        "one feature half too small",
        Kind.LAYOUT,
        "made up",
        results(lambda y: y[:, 7].mul_(0.5)),
        gemm("te-nvfp4", "fprop worst column sqnr @ odd-shape", "some columns (input features) are wrong"),
    ),
)

KERNELS = (
    Fault(
        "results lose bits",
        Kind.FRAMEWORK,
        "made up",
        results(plants.cut),
        gemm("te-current", "fprop gain @ gaussian", UNIFORM_LOSS, hidden=WHOLE)
        + gemm("bf16-like", "wgrad sqnr @ gaussian"),
    ),
    Fault(
        "ten bits of an accumulator",
        Kind.FRAMEWORK,
        "DeepGEMM 37",
        plants.short_accumulator(10),
        gemm("te-current", "fprop gain @ gaussian", TOWARDS_ZERO),
    ),
)
FAULTS = (*OPERANDS, *LAYOUT, *KERNELS)
