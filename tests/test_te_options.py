"""Options of Transformer Engine's recipes on a stand-in for the package: pinned, read back as specs, and refused if they do nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.numerics.spec import BF16, DEQUANTIZED
from fp8parity.recipes import RECIPES, apply
from fp8parity.recipes.recipe import QUANTIZED_WEIGHTS
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.presets import presets
from te_stand_in import Primary
from te_stand_in import stand_in as stand_in


@dataclass
class QParams:
    power_2_scale: bool = False
    amax_epsilon: float = 0.0


class Float8CurrentScaling:
    """The fields and class attributes of TE 2.20.2 that the adapter reads."""

    __dataclass_fields__ = {"fp8_format": 0, "backward_override": 0}
    fp8_quant_fwd_inp = fp8_quant_fwd_weight = fp8_quant_bwd_grad = QParams()
    keeps: bool = True

    def __init__(self, backward_override: str | None = None) -> None:
        self.fp8_format = SimpleNamespace(name="HYBRID")
        self.backward_override = backward_override if self.keeps else None

    def __repr__(self) -> str:
        return f"recipe_type=Float8CurrentScaling, backward_override={self.backward_override}"


@pytest.fixture
def te(stand_in, monkeypatch) -> Any:
    """The module of the stand-in that holds recipes."""
    found = sys.modules["transformer_engine.common.recipe"]
    monkeypatch.setattr(found, "Float8CurrentScaling", Float8CurrentScaling)
    return found


def converted(recipe: str, execution: Execution = Execution.NATIVE, **fields: Any) -> Any:
    model = models.build(presets()["tiny"].model, 0)
    return apply(model, replace(RECIPES[recipe], **fields), execution, tokens=512)


@pytest.mark.parametrize(
    ("recipe", "left"), [("te-current-backward-dequantized", DEQUANTIZED), ("te-current-backward-bf16", BF16)]
)
def test_backward_override_is_set_and_read_back(te, recipe, left):
    from fp8parity.recipes.adapters import te_recipes

    made = te_recipes.trusted_recipe(RECIPES[recipe], RECIPES[recipe].own)
    assert made.backward_override == dict(RECIPES[recipe].options)["backward_override"]
    spec = te_recipes.linear_spec(made)
    assert spec == RECIPES[recipe].linear
    assert (spec.dgrad_dy, spec.dgrad_w, spec.wgrad_x) == (BF16, left, left)
    assert all(f"backward_override={made.backward_override}" in m.config for m in converted(recipe).inventory)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((("backward_overide", "dequantized"),), "TE's Float8CurrentScaling has no option 'backward_overide'"),
        (
            (("backward_override", "high-precision"),),
            "'high-precision' is not known to this adapter; it knows high_precision, dequantized",
        ),
        ((), r"differs from the catalogue \(.*check for NVTE_ environment variables"),
    ],
)
def test_option_that_does_something_else_is_refused(te, options, message):
    with pytest.raises(ValueError, match=message):
        converted("te-current-backward-dequantized", options=options)


def test_ends_in_bf16_keep_fp8_weights_between(te):
    found = converted("te-current-ends-bf16-fp8-weights")
    primary = {n for n, p in found.model.named_parameters() if isinstance(p, Primary)}
    assert {n.split(".")[1] for n in primary} == {"1", "2"}
    assert primary == set(found.initial) == {f"{m.fqn}.weight" for m in found.inventory}
    assert all(m.config.endswith("; quantized weights") for m in found.inventory)


def test_fused_layer_keeps_no_quantized_weights(te):
    with pytest.raises(
        ValueError, match="te-current fused: quantized_weights is not supported in a fused layer; use native execution"
    ):
        converted("te-current", Execution.FUSED, options=((QUANTIZED_WEIGHTS, True),))
