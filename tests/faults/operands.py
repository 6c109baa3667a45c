"""Faults of scales and of rounding. One linear layer shows them."""

from __future__ import annotations

import torch
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.numerics.spec import GEMMS

from faults import plants
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Numerics
from faults.plants import grid, results, rounding, rule, times, variant_of

WHOLE = tuple(f"{gemm} sqnr" for gemm in GEMMS)
"""The SQNR of whole GEMMs. Some faults leave all of them inside their limits."""
TOWARDS_ZERO = "operands, partial sums or results are rounded towards zero"
UNIFORM_LOSS = "a scale, or sums or results that are rounded towards zero"


def gemm(recipe: str, place: str, cause: str = "", *, hidden: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    return (Finding(Numerics("gemm", recipe), place, Blame.RECIPE, cause=cause, hidden=hidden),)


def codes(recipe: str, place: str) -> tuple[Finding, ...]:
    return (Finding(Numerics("codes", recipe), place, Blame.RECIPE),)


floor = rule("e8m0-rceil", lambda f: SCALE_RULES["e8m0-floor"])

SCALES = (
    Fault(
        "scale twice too large",
        Kind.RECIPE,
        "made up",
        times("te-fp32", 2),
        gemm("te-current", "fprop sqnr @ gaussian") + codes("te-current", "differing scales @ dgrad_dy"),
    ),
    Fault(
        "scale four times too large",
        Kind.RECIPE,
        "made up",
        times("te-fp32", 4),
        gemm("te-current", "fprop sqnr @ gaussian"),
    ),
    Fault(
        "scale 4096 times too small",
        Kind.RECIPE,
        "made up",
        times("te-pow2", 2.0**-12),
        gemm("te-block", "fprop sqnr @ heavy-tailed"),
    ),
    Fault(
        "scale one ulp off",
        Kind.RECIPE,
        "TE 2615",
        times("te-fp32", 1 + 2**-23),
        codes("te-current", "differing scales @ fprop_w"),
    ),
    Fault(
        "scale 2**-8 off",
        Kind.RECIPE,
        "TE 2615",
        times("te-fp32", 1 + 2**-8),
        codes("te-current", "differing scales @ fprop_x"),
    ),
    Fault(
        "floor for round-up",
        Kind.RECIPE,
        "torchao 3686",
        floor,
        gemm("te-mxfp8", "wgrad sqnr @ gaussian")
        + codes("te-mxfp8", "differing scales @ wgrad_x")
        + codes("ao-mxfp8", "differing scales @ wgrad_x"),
    ),
    Fault(
        "floor for round-up in one operand",
        Kind.RECIPE,
        "torchao 3686",
        variant_of("te-mxfp8", "wgrad_dy", scale="e8m0-floor"),
        gemm("te-mxfp8", "wgrad sqnr @ heavy-tailed"),
    ),
    Fault(
        "scale of a tiny block is no power of two",
        Kind.RECIPE,
        "TE 2589",
        rule("te-pow2", lambda f: lambda amax, fmt: torch.where(amax < 2**-20, f(amax, fmt) * 1.25, f(amax, fmt))),
        codes("te-block", "differing scales @ dgrad_dy"),
    ),
    Fault(
        "zero amax without an epsilon",
        Kind.RECIPE,
        "torchao 3356, 4713",
        rule("ao-pow2", lambda f: lambda amax, fmt: fmt.max / amax),
        gemm("core-rowwise", "dgrad sqnr @ zero-row"),
    ),
    Fault(
        "scales clipped",
        Kind.RECIPE,
        "made up",
        rule("te-fp32", lambda f: lambda amax, fmt: f(amax, fmt).clamp(max=2.0**15)),
        gemm("te-current", "fprop sqnr @ near-zero"),
    ),
    Fault(
        "no scale at all",
        Kind.RECIPE,
        "made up",
        rule("te-fp32", lambda f: lambda amax, fmt: torch.ones_like(amax)),
        gemm("te-current", "fprop sqnr @ near-zero"),
    ),
    Fault(
        "amax of a part of the tensor",
        Kind.RECIPE,
        "Megatron-LM 442, torchtitan 698",
        plants.amax_of_a_part,
        gemm("te-current", "fprop sqnr @ uneven-row"),
    ),
    Fault(
        "scale 1% too large",
        Kind.RECIPE,
        "made up",
        results(lambda y: y.mul_(1.01)),
        gemm("te-current", "wgrad gain @ gaussian", "fprop, dgrad, wgrad: a gain of 1.01", hidden=WHOLE)
        + gemm("te-nvfp4", "fprop gain @ gaussian"),
    ),
    Fault(
        "scale 1% too small",
        Kind.RECIPE,
        "made up",
        results(lambda y: y.mul_(0.99)),
        gemm("te-block", "fprop gain @ near-zero", UNIFORM_LOSS),
    ),
    Fault(
        "results twice too large",
        Kind.RECIPE,
        "TE 1047",
        results(lambda y: y.mul_(2)),
        gemm("te-current", "fprop sqnr @ gaussian", "a gain of 2 for all operands"),
    ),
    Fault(
        "results half too small",
        Kind.RECIPE,
        "made up",
        results(lambda y: y.mul_(0.5)),
        gemm("te-nvfp4", "dgrad sqnr @ gaussian", "a gain of 0.5 for all operands"),
    ),
)

ROUNDING = (
    Fault(
        "truncation",
        Kind.RECIPE,
        "made up",
        rounding(torch.trunc),
        gemm("te-current", "fprop gain @ gaussian", "fprop: results are too small by 7.90% to 8.80%")
        + gemm("te-block", "wgrad gain @ odd-shape", TOWARDS_ZERO),
    ),
    Fault(
        "ties away from zero",
        Kind.RECIPE,
        "made up",
        rounding(lambda x: x.sign() * (x.abs() + 0.5).floor()),
        gemm("te-block", "dgrad gain @ gaussian", "ties or more are rounded away from zero", hidden=WHOLE),
    ),
    Fault(
        "cast without saturation",
        Kind.RECIPE,
        "torchao 1912, pytorch 178817",
        lambda patch: (
            times("te-fp32", 1.1)(patch),
            grid(lambda x, fmt: plants.ROUND(x, fmt, saturate=False))(patch),
        ),
        gemm("te-current", "dgrad sqnr @ gaussian"),
    ),
    Fault(
        "largest code of another E4M3",
        Kind.RECIPE,
        "made up",
        grid(lambda x, fmt: plants.ROUND(x.clamp(-240, 240), fmt)),
        gemm("te-block", "fprop sqnr @ gaussian"),
    ),
    Fault(
        "subnormal codes flushed",
        Kind.RECIPE,
        "made up",
        grid(lambda x, fmt: plants.ROUND(x.where(x.abs() >= 2.0**fmt.emin, x * 0), fmt)),
        codes("te-block", "differing codes @ wgrad_dy"),
        note="No GEMM shows it: the operands of the families have too few such values.",
    ),
    Fault(
        "stochastic rounding returned zeros",
        Kind.RECIPE,
        "TE 3281",
        grid(lambda x, fmt: x * 0, stochastic=True),
        gemm("te-nvfp4", "dgrad sqnr @ gaussian"),
    ),
    Fault(
        "stochastic rounding rounds to nearest",
        Kind.RECIPE,
        "made up",
        grid(lambda x, fmt: plants.ROUND(x, fmt), stochastic=True),
        gemm("te-nvfp4", "dgrad sqnr @ gaussian"),
    ),
)

FAULTS = (*SCALES, *ROUNDING)
