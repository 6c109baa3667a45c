"""The TE adapter on a stand-in for the package: weight caches, quantized weights, FP8 attention; planted faults are found."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
from fp8parity import recipes
from fp8parity.checks import attention, short_run, state
from fp8parity.numerics.spec import BF16, DEQUANTIZED
from fp8parity.recipes import RECIPES, apply
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.presets import presets
from own_models import Pair
from sessions import NANO, cell
from te_stand_in import AttentionLogging, Primary
from te_stand_in import stand_in as stand_in

from conftest import measured, subject


def test_linears_are_named_by_their_places(stand_in):
    """TE gives each module of a process a number as its name, and Dynamo compiled the code of each anew."""
    found = []
    for _ in range(2):
        converted = apply(
            models.build(NANO.model, 0), RECIPES["te-current"], Execution.NATIVE, tokens=NANO.schedule.tokens
        )
        found.append(
            {fqn: getattr(m, "name", "") for fqn, m in converted.model.named_modules() if type(m).__name__ == "Linear"}
        )
    kept = {"lm_head"}  # it stays in BF16
    assert found[0] == found[1] == {fqn: "" if fqn in kept else fqn for fqn in found[0]} and len(found[0]) > len(kept)


@pytest.mark.slow
def test_te_caches_and_quantized_weights_follow_the_masters(session, stand_in):
    found = measured(state.measure(subject(session, "te-current", "native")))
    assert {v for k, v in found.items() if "difference" in k} == {0.0}
    assert len(found) == 17
    plain = found["accumulated sqnr @ tiny steps"]
    assert 20 < plain < 32
    assert all(
        abs(found[f"{weights} sqnr @ tiny steps"] - plain) < 0.5 for weights in ("cached weight", "quantized weights")
    )


def test_stale_te_cache_is_found(session, stand_in):
    one = subject(session, "te-current", "native")
    sound = short_run.ShortRun(one).followed(cache=True)
    stand_in.refreshes = False
    assert short_run.ShortRun(one).followed(cache=True) < sound - 1.5
    assert abs(short_run.ShortRun(one).followed() - sound) < 0.5


@pytest.fixture
def primary(session, stand_in) -> Any:
    """The subject with quantized weights."""
    one = subject(session, "te-current", "native")
    return replace(one, recipe=replace(one.recipe, options=(("quantized_weights", True),)))


def test_quantized_weights_without_updates_are_found(primary, monkeypatch):
    sound = short_run.ShortRun(primary).followed()
    real = short_run.MasterWeightOptimizer.step

    def lost(self, clip):
        before = [p.detach().clone() for p in self.params]
        norm = real(self, clip)
        for p, old in zip(self.params, before, strict=True):
            if isinstance(p, Primary):
                p.data = old
        return norm

    monkeypatch.setattr(short_run.MasterWeightOptimizer, "step", lost)
    assert short_run.ShortRun(primary).followed() < sound - 1.5


def test_masters_from_dequantized_weights_are_found(primary, monkeypatch):
    assert isinstance(short_run.ShortRun(primary).converted.model.get_submodule("layers.0.mlp.up_proj").weight, Primary)
    assert set(state._masters(primary)) == {0}
    real = short_run.apply
    monkeypatch.setattr(short_run, "apply", lambda *a, **k: replace(real(*a, **k), initial={}))
    assert 0.01 < max(state._masters(primary)) < 0.1


def test_fp8_attention_is_as_far_from_fp64_as_fp8_is(session, stand_in):
    found, notes = attention.measure(subject(session, "te-current", "native"))
    values = measured((found, notes))
    assert all(values[f"fp8 attention used @ {name}"] == 1 for name in attention.TENSORS)
    assert all(20 < values[f"attention sqnr @ {name}"] < 35 for name in attention.TENSORS)
    assert values["repeat difference @ new modules"] == 0
    assert notes == ["TE selects FusedAttention, sub-backend 2"]
    assert stand_in.scale_updates == [False] * (attention.WARMUP + 1) * (1 + attention.REPEATS["cpu"])


def test_attention_fallen_back_to_bf16_is_found(session, stand_in):
    stand_in.refreshes = False
    values = measured(attention.measure(subject(session, "te-current", "native")))
    assert {values[f"fp8 attention used @ {name}"] for name in attention.TENSORS} == {0.0}
    assert all(values[f"attention sqnr @ {name}"] > 45 for name in attention.TENSORS)


def test_attention_skips_with_the_packages_own_reason(session, stand_in):
    one = cell("te-current", "native")
    assert session.skip_reason("attention", one) is None
    stand_in.refreshes = False
    reason = "TE has no FP8 attention for te-current here: Disabling FusedAttention for bshd_bshd_bshd"
    assert session.skip_reason("attention", one) == reason
    assert (AttentionLogging._log_level, logging.getLogger("DotProductAttention").handlers) == (logging.WARNING, [])
    assert "Transformer Engine's" in session.skip_reason("attention", cell("ao-rowwise", "emulated"))


def test_frozen_linear_is_frozen_and_tied_one_refused(stand_in):
    """TE's module has parameters of its own. What is frozen in the linear is frozen there; what was tied is a copy."""
    model = Pair(tied=False).bfloat16()
    model.inner.bias.requires_grad_(False)
    converted = apply(model, recipes.get("te-current"), Execution.NATIVE, tokens=16).model
    assert [n for n, p in converted.named_parameters() if not p.requires_grad] == ["inner.bias"]
    with pytest.raises(
        ValueError,
        match="te-current: embedding.weight and unembed.weight are tied, and the converted modules hold copies",
    ):
        apply(Pair().bfloat16(), recipes.get("te-current"), Execution.NATIVE, tokens=16)


def converted(recipe: str, execution: Execution = Execution.NATIVE, **fields: Any) -> Any:
    model = models.build(presets()["tiny"].model, 0)
    return apply(model, replace(RECIPES[recipe], **fields), execution, tokens=512)


@pytest.mark.parametrize(
    ("recipe", "left"), [("te-current-backward-dequantized", DEQUANTIZED), ("te-current-backward-bf16", BF16)]
)
def test_backward_override_is_set_and_read_back(stand_in, recipe, left):
    from fp8parity.recipes.adapters import te_recipes

    made = te_recipes.trusted_recipe(RECIPES[recipe], RECIPES[recipe].own)
    assert made.backward_override == dict(RECIPES[recipe].options)["backward_override"]
    spec = te_recipes.linear_spec(made)
    assert spec == RECIPES[recipe].linear
    assert (spec.dgrad_dy, spec.dgrad_w, spec.wgrad_x) == (BF16, left, left)
    assert all(f"backward_override={made.backward_override!r}" in m.config for m in converted(recipe).inventory)


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
def test_option_that_does_something_else_is_refused(stand_in, options, message):
    with pytest.raises(ValueError, match=message):
        converted("te-current-backward-dequantized", options=options)
