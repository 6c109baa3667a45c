"""Faults of scales and of rounding. One linear layer shows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.formats import Format
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.numerics.spec import GEMMS

from faults import plants
from faults.fault import Blame, Fault, Finding, Kind
from faults.looks import Gaussian, Numerics
from faults.plants import decoded, flipped, grid, results, rounding, rule, times

WHOLE = tuple(f"{gemm} sqnr" for gemm in GEMMS)
"""The SQNR of whole GEMMs. Some faults leave all of them inside their limits."""
TOWARDS_ZERO = "operands, partial sums or results are rounded towards zero"
SCALE = "for all operands, and otherwise the SQNR is as expected: a scale, not an accumulator"
UNIFORM_LOSS = "a scale, or sums or results that are rounded towards zero"


recipe = partial(Fault, Kind.RECIPE)


def gemm(
    recipe: str, place: str, cause: str = "", *, hidden: tuple[str, ...] = (), look: type[Numerics] = Numerics
) -> tuple[Finding, ...]:
    return (Finding(look("gemm", recipe), place, Blame.RECIPE, cause=cause, hidden=hidden),)


def codes(recipe: str, place: str, cause: str = "") -> tuple[Finding, ...]:
    return (Finding(Numerics("codes", recipe), place, Blame.RECIPE, cause=cause),)


def misread(real: Callable[..., Any]) -> Callable[..., Any]:
    """The bytes of E5M2 codes are read as those of E4M3."""

    def operand(self: EmulatedLinear, name: str, x: torch.Tensor) -> Any:
        data, outer = real(self, name, x)
        e5m2 = getattr(self.spec, name).format == "e5m2"
        return data.to(torch.float8_e5m2).view(torch.float8_e4m3fn).to(data.dtype) if e5m2 else data, outer

    return operand


def overflowing(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """What is above the largest value becomes NaN (OFP8 1.0, section 5.2.2)."""
    return torch.where(x.abs() > fmt.max, torch.nan, plants.ROUND(x, fmt))


floor = rule("e8m0-rceil", lambda f: SCALE_RULES["e8m0-floor"])

SCALES = {
    "scale twice too large": recipe(times("te-fp32", 2), gemm("te-current", "fprop sqnr @ gaussian")),
    "scale 4096 times too small": recipe(times("te-pow2", 2.0**-12), gemm("te-block", "fprop sqnr @ heavy-tailed")),
    "scale one ulp off": recipe(
        times("te-fp32", 1 + 2**-23),
        codes("te-current", "differing scales @ fprop_w", "are (1 - 1.2e-07) times those"),
        "TE 2615",
    ),
    "scale 2**-8 off": recipe(
        times("te-fp32", 1 + 2**-8), codes("te-current", "differing scales @ fprop_x"), "TE 2615"
    ),
    "floor for round-up": recipe(
        floor,
        codes("te-mxfp8", "differing scales @ wgrad_x", "scales of this project are 0.5 times those of"),
        "torchao 3686",
    ),
    "scale of a tiny block is no power of two": recipe(
        rule("te-pow2", lambda f: lambda amax, fmt: torch.where(amax < 2**-20, f(amax, fmt) * 1.25, f(amax, fmt))),
        codes("te-block", "differing scales @ dgrad_dy"),
        "TE 2589",
    ),
    "zero amax without an epsilon": recipe(
        rule("ao-pow2", lambda f: lambda amax, fmt: fmt.max / amax),
        gemm("core-rowwise", "dgrad sqnr @ zero-row"),
        "torchao 3356, 4713",
    ),
    "scales clipped": recipe(
        rule("te-fp32", lambda f: lambda amax, fmt: f(amax, fmt).clamp(max=2.0**15)),
        gemm("te-current", "fprop sqnr @ near-zero"),
    ),
    "scales rounded up after the codes were made": recipe(
        plants.decoded_by(lambda decode: torch.exp2(torch.ceil(torch.log2(decode)))),
        gemm("te-current", "fprop gain @ gaussian", "rounded away from zero"),
        "transformers 47030",
    ),
    "E5M2 gradients read as E4M3": recipe(
        plants.method(EmulatedLinear, "operand", misread),
        gemm("te-current", "dgrad sqnr @ gaussian", hidden=("fprop",)),
        "TE 3342",
    ),
    "amax of a part of the tensor": recipe(
        plants.amax_of_a_part, gemm("te-current", "fprop sqnr @ uneven-row"), "Megatron-LM 442, torchtitan 698"
    ),
    "scale 1% too large": recipe(
        results(lambda y: y.mul_(1.01)),
        gemm("te-current", "wgrad gain @ gaussian", f"fprop, dgrad, wgrad: a gain of 1.01 {SCALE}", hidden=WHOLE),
    ),
    "results twice too large": recipe(
        results(lambda y: y.mul_(2)),
        gemm("te-current", "fprop sqnr @ gaussian", f"a gain of 2 {SCALE}"),
        "TE 1047",
    ),
    "NVFP4 activations decoded 0.5% too large": recipe(
        decoded("fprop_x", 1.005), gemm("te-nvfp4", "fprop gain @ gaussian", "a scale or a rounding")
    ),
    "one sign of 500 flipped": recipe(
        results(flipped),
        gemm("te-current", "fprop sqnr @ gaussian", "the signs of"),
    ),
}

ROUNDING = {
    "truncation": recipe(
        rounding(torch.trunc),
        gemm(
            "te-current",
            "fprop gain @ gaussian",
            f"fprop: results are too small by 7.90% to 8.80%, and otherwise the SQNR is as expected: {TOWARDS_ZERO}",
        ),
    ),
    "ties away from zero": recipe(
        rounding(lambda x: x.sign() * (x.abs() + 0.5).floor()),
        gemm("te-block", "dgrad gain @ gaussian", "ties or more are rounded away from zero", hidden=WHOLE),
    ),
    "cast without saturation": recipe(
        lambda patch: (times("te-fp32", 1.1)(patch), grid(overflowing)(patch)),
        gemm("te-current", "dgrad sqnr @ gaussian"),
        "torchao 1912, pytorch 178817",
    ),
    "largest code of another E4M3": recipe(
        grid(lambda x, fmt: plants.ROUND(x.clamp(-240, 240), fmt)), gemm("te-block", "fprop sqnr @ gaussian")
    ),
    # No GEMM shows it: the operands of the families have too few such values.
    "subnormal codes flushed": recipe(
        grid(lambda x, fmt: plants.ROUND(x.where(x.abs() >= 2.0**fmt.emin, x * 0), fmt)),
        codes(
            "te-block",
            "differing codes @ wgrad_dy",
            "codes differ, by up to 8 steps of the grid, and all scales are equal",
        ),
    ),
    "stochastic rounding returned zeros": recipe(
        grid(lambda x, fmt: x * 0, stochastic=True), gemm("te-nvfp4", "dgrad sqnr @ gaussian", look=Gaussian), "TE 3281"
    ),
    "stochastic rounding rounds to nearest": recipe(
        grid(lambda x, fmt: plants.ROUND(x, fmt), stochastic=True),
        gemm(
            "te-nvfp4",
            "dgrad sqnr @ gaussian",
            "dgrad, wgrad: stochastic rounding gives the same result in every pass: it rounds to nearest",
            look=Gaussian,
        ),
    ),
    "the same noise for each tensor": recipe(
        plants.same_noise(1),
        gemm(
            "te-nvfp4",
            "dgrad averaging gain @ gaussian",
            "dgrad, wgrad: stochastic rounding gives the same result in every pass: its noise repeats",
            hidden=WHOLE,
            look=Gaussian,
        ),
        "Primus-Turbo 365, llm.c 597",
    ),
    "one noise for two tensors of a step": recipe(
        plants.same_noise(tensors=2),
        gemm("te-nvfp4", "rounding correlation @ two linears", look=Gaussian),
        "Primus-Turbo 365",
    ),
    "two noises in turns": recipe(
        plants.same_noise(2), gemm("te-nvfp4", "dgrad averaging gain @ gaussian", hidden=WHOLE, look=Gaussian)
    ),
}

FAULTS = SCALES | ROUNDING
