"""Checkpoints on one device: sound ones pass, and what a checkpoint loses or rounds is red with the blame on the right side."""

from __future__ import annotations

import copy
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.checks import checkpoint
from fp8parity.checks.checkpoint import PLAIN, QUANTIZED, arms, changed, differences
from fp8parity.checks.short_run import ShortRun, difference
from fp8parity.distributed import sharding as sharded
from fp8parity.numerics import prng
from fp8parity.numerics.quantized_weights import PARTS, QuantizedWeight
from fp8parity.numerics.scaling import quantize
from fp8parity.numerics.spec import BF16, DEQUANTIZED, LinearSpec
from fp8parity.recipes import RECIPES, apply
from fp8parity.recipes.recipe import QUANTIZED_WEIGHTS, Rule
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.presets import presets
from te_stand_in import stand_in as stand_in

from conftest import measured


@pytest.mark.parametrize(
    ("recipe", "execution", "kept"),
    [
        ("bf16", "native", [PLAIN]),
        ("te-delayed", "emulated", [PLAIN]),
        ("te-current", "emulated", [PLAIN, QUANTIZED]),
        ("te-current", "native", [PLAIN, QUANTIZED]),
        ("te-current", "fused", [PLAIN]),
        ("te-current-ends-bf16-fp8-weights", "native", [QUANTIZED]),
    ],
)
def test_ways_to_keep_weights(session, stand_in, recipe, execution, kept):
    assert list(arms(session.subject(recipe, execution))) == kept


def test_native_cells_on_a_stand_in(session, stand_in):
    """Transformer Engine's modules as the adapter uses them."""
    found = measured(checkpoint.measure(session.subject("te-current", "native")))
    assert len(found) == 20
    assert {v for k, v in found.items() if k.startswith(("changed", "step"))} == {0.0}
    assert {round(v, 12) for k, v in found.items() if "gain" in k} == {1.0}


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ({"a": torch.ones(2)}, 0),
        ({"b": torch.ones(2)}, 2),
        ({"a": torch.tensor([1.0, 1 + 2**-20])}, 1),
        ({"a": torch.ones(2, 1)}, 1),
        ({"a": torch.ones(2, dtype=torch.float64)}, 1),
        ({"a": torch.tensor([1.0, torch.nan])}, 1),
    ],
)
def test_missing_and_unequal_tensors_count_as_changed(after, count):
    assert changed({"a": torch.ones(2)}, after) == count


def test_difference_is_relative_to_the_unbroken_step():
    before = {"a": torch.tensor([3.0, 4.0]), "none": torch.zeros(2), "b": torch.tensor([2.0])}
    after = {"a": torch.tensor([3.0, 14.0]), "none": torch.ones(2), "b": torch.tensor([torch.nan])}
    assert differences(before, after) == pytest.approx([2.0, torch.nan], nan_ok=True)


def test_te_state_is_compared_by_its_tensors():
    """Its bytes also hold what a new model has not got yet."""

    def packed(**held: Any) -> dict[str, Any]:
        import pickle

        return {
            "m._extra_state": torch.frombuffer(bytearray(pickle.dumps(held)), dtype=torch.uint8),
            "n._extra_state": torch.empty(0),
        }

    scale = torch.tensor([3.0])
    assert checkpoint._extra_state(packed(scale_fwd=scale, recipe="x")) == {"m._extra_state.scale_fwd": scale}
    assert checkpoint._extra_state({"m._extra_state": io.BytesIO()}) == {}


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("te-current-ends-bf16-fp8-weights", ["fp8 primary weights"]),
        ("te-current", ["fsdp", "hsdp", "reduced once", "bf16 reduction", "bf16 parameters", "fp8 primary weights"]),
    ],
)
def test_quantized_weights_decide_the_sharded_arms(recipe, names):
    assert [arm.name for arm in sharded.arms(RECIPES[recipe], Execution.NATIVE, 2)] == names


KEPT = ("te-current", "te-block", "te-mxfp8", "te-nvfp4", "te-current-backward-dequantized")
OPTION = ((QUANTIZED_WEIGHTS, True),)


def matrix(stream: int = 1) -> torch.Tensor:
    return prng.normal(stream, 160 * 128).view(160, 128)


def weight(recipe: str) -> QuantizedWeight:
    return QuantizedWeight.of(matrix().bfloat16(), RECIPES[recipe].linear)


def parts(w: torch.Tensor) -> list[torch.Tensor]:
    return [t for name in PARTS if (t := getattr(w, name)) is not None]


@pytest.mark.usefixtures("eager")
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


@pytest.mark.usefixtures("eager")
def test_write_of_fp32_rounds_once():
    """From FP32 to E4M3, and not to BF16 before: next to the middle between two codes the latter goes the other way."""
    w, above = weight("te-current"), matrix()
    above[0, 0], above[0, 1] = 448.0, 17.0 + 2**-8  # 17 lies in the middle between 16 and 18, and BF16 rounds to 17
    torch._foreach_copy_([w], [above])
    assert w.dequantize(dtype=torch.float32)[0, :2].tolist() == [448.0, 18.0]
    w.copy_(above.bfloat16())
    assert w.dequantize(dtype=torch.float32)[0, :2].tolist() == [448.0, 16.0]


@pytest.mark.usefixtures("eager")
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


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("recipe", ["te-mxfp8"])
def test_first_step_is_that_of_plain_weights(session, recipe):
    """The masters start from the BF16 weights, and their codes are those of BF16 weights. Later steps differ by the rounding to BF16."""
    spec = session.subject(recipe)
    kept = ShortRun(replace(spec, recipe=replace(spec.recipe, options=OPTION)))
    plain = ShortRun(spec)
    assert all(torch.equal(a, b) for a, b in zip(kept.optimizer.masters, plain.optimizer.masters, strict=True))
    steps = [difference(plain.step(n), kept.step(n)) for n in range(2)]
    assert steps[0] == 0
    assert 0 < steps[1] < 0.1


@pytest.mark.usefixtures("eager")
def test_rule_decides_where_weights_are_quantized():
    recipe = replace(
        RECIPES["te-current"], rules=(Rule(blocks=(1,), linear=RECIPES["te-current"].linear, options=OPTION),)
    )
    converted = apply(models.build(presets()["tiny"].model, 0), recipe, Execution.EMULATED, tokens=512)
    kept = {m.fqn for m in converted.inventory if m.kind == "QuantizedWeightLinear"}
    assert {fqn.split(".")[1] for fqn in kept} == {"1"}
    assert kept == {m.fqn for m in converted.inventory if m.config.endswith("; quantized weights")}
    assert set(converted.initial) == {f"{fqn}.weight" for fqn in kept}


@pytest.mark.usefixtures("eager")
def test_only_dgrad_w_and_wgrad_x_can_be_dequantized():
    assert LinearSpec(dgrad_w=DEQUANTIZED).dgrad_w != BF16
    with pytest.raises(ValueError, match="dgrad_dy: only dgrad_w and wgrad_x can be dequantized"):
        LinearSpec(dgrad_dy=DEQUANTIZED)
