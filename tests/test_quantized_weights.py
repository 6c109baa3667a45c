"""Weights that are kept as codes and scales: what is written, read, saved and trained; the recipes that use them, emulated."""

from __future__ import annotations

import copy
import io
from dataclasses import replace

import pytest
import torch
from fp8parity.checks.short_run import ShortRun, difference
from fp8parity.numerics import prng
from fp8parity.numerics.quantized_weights import PARTS, QuantizedWeight
from fp8parity.numerics.scaling import quantize
from fp8parity.numerics.spec import BF16, DEQUANTIZED, LinearSpec
from fp8parity.recipes import RECIPES, apply
from fp8parity.recipes.recipe import QUANTIZED_WEIGHTS, Rule
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.presets import presets

pytestmark = pytest.mark.usefixtures("eager")
KEPT = ("te-current", "te-block", "te-block-fp32", "te-mxfp8", "te-nvfp4", "te-current-backward-dequantized")
OPTION = ((QUANTIZED_WEIGHTS, True),)


def matrix(stream: int = 1) -> torch.Tensor:
    return prng.normal(stream, 160 * 128).view(160, 128)


def weight(recipe: str) -> QuantizedWeight:
    return QuantizedWeight.of(matrix().bfloat16(), RECIPES[recipe].linear)


def parts(w: torch.Tensor) -> list[torch.Tensor]:
    return [t for name in PARTS if (t := getattr(w, name)) is not None]


@pytest.mark.parametrize("recipe", KEPT)
def test_weight_equals_the_quantizers_values(recipe):
    w, spec = weight(recipe), RECIPES[recipe].linear
    wanted = quantize(matrix().bfloat16(), spec.fprop_w).dequantize()
    torch.testing.assert_close(w.dequantize(dtype=torch.float32), wanted, rtol=1e-6, atol=0)
    assert w.dtype == torch.bfloat16
    assert torch.equal(w + 0, w.dequantize())
    (_, _), (data, outer) = w.prepared()
    back = (data.float() * outer).T
    if spec.dgrad_w.quantized:
        wanted = quantize(matrix().bfloat16().T.contiguous(), spec.dgrad_w).dequantize().T
        torch.testing.assert_close(back, wanted, rtol=1e-6, atol=0)
    else:
        assert torch.equal(back, w.dequantize().float())


def test_write_of_fp32_rounds_once():
    """From FP32 to E4M3, and not to BF16 before: next to the middle between two codes the latter goes the other way."""
    w, above = weight("te-current"), matrix()
    above[0, 0], above[0, 1] = 448.0, 17.0 + 2**-8  # 17 lies in the middle between 16 and 18, and BF16 rounds to 17
    torch._foreach_copy_([w], [above])
    assert w.dequantize(dtype=torch.float32)[0, :2].tolist() == [448.0, 18.0]
    w.copy_(above.bfloat16())
    assert w.dequantize(dtype=torch.float32)[0, :2].tolist() == [448.0, 16.0]


@pytest.mark.parametrize("recipe", KEPT)
def test_codes_and_scales_survive_copies_and_files(recipe):
    w = torch.nn.Parameter(weight(recipe))
    file = io.BytesIO()
    torch.save({"w": w}, file)
    file.seek(0)
    fresh = QuantizedWeight.of(matrix(2).bfloat16(), RECIPES[recipe].linear)
    fresh.copy_(w.detach())
    for other in (torch.load(file, weights_only=False)["w"], copy.deepcopy(w), w.detach().clone(), fresh):
        assert isinstance(other, QuantizedWeight)
        assert all(torch.equal(a, b) for a, b in zip(parts(w), parts(other), strict=True))
        assert "QuantizedWeight(" in repr(other)


@pytest.mark.parametrize("recipe", ["te-current", "te-mxfp8"])
def test_first_step_is_that_of_plain_weights(session, recipe):
    """The masters start from the BF16 weights, and their codes are those of BF16 weights. Later steps differ by the rounding to BF16."""
    spec = session.subject(recipe)
    kept = ShortRun(replace(spec, recipe=replace(spec.recipe, options=OPTION)))
    plain = ShortRun(spec)
    assert all(torch.equal(a, b) for a, b in zip(kept.optimizer.masters, plain.optimizer.masters, strict=True))
    steps = [difference(plain.step(n), kept.step(n)) for n in range(2)]
    assert steps[0] == 0
    assert 0 < steps[1] < 0.1


def test_rule_decides_where_weights_are_quantized():
    recipe = replace(
        RECIPES["te-current"], rules=(Rule(blocks=(1,), linear=RECIPES["te-current"].linear, options=OPTION),)
    )
    converted = apply(models.build(presets()["tiny"].model, 0), recipe, Execution.EMULATED, tokens=512)
    kept = {m.fqn for m in converted.inventory if m.kind == "QuantizedWeightLinear"}
    assert {fqn.split(".")[1] for fqn in kept} == {"1"}
    assert kept == {m.fqn for m in converted.inventory if m.config.endswith("; quantized weights")}
    assert set(converted.initial) == {f"{fqn}.weight" for fqn in kept}


def test_only_dgrad_w_and_wgrad_x_can_be_dequantized():
    assert LinearSpec(dgrad_w=DEQUANTIZED).dgrad_w != BF16
    with pytest.raises(ValueError, match="dgrad_dy: only dgrad_w and wgrad_x can be dequantized"):
        LinearSpec(dgrad_dy=DEQUANTIZED)
