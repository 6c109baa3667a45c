"""The check of places, on the CPU. Each fault is planted in one place of the recipe's model or of BF16's, and is red there alone, by rules.
A gradient that is a tenth too small, or a layer in BF16, is inside these rules: ``faults`` has them for the canary and ``places``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.checks import gradients, layers
from fp8parity.judging import numerics
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.recipes import ConvertedModel
from fp8parity.records.schema import Measurements
from fp8parity.training.step import cross_entropy
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from sessions import cell, stored
from trajectories import PROVENANCE

from conftest import measured

Plant = Callable[[torch.nn.Module], object]
POLICY = stored()[1]
CELLS = {"bf16": cell("bf16", "native", "micro"), "te-current": cell("te-current", "emulated", "micro")}


def on_gradient(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    return lambda model: model.get_parameter(name).register_hook(change)


def every_second_column_flipped(gradient: torch.Tensor) -> torch.Tensor:
    signs = torch.ones_like(gradient)
    signs[:, ::2] = -1
    return gradient * signs


@pytest.mark.slow
def test_trained_state_has_learned_context(session):
    """Its held-out loss went half of the way from the unigram to the bigram entropy. micro: 62%."""
    config, stream = presets()["micro"].model, corpus.load("topics")
    assert stream.floor is not None
    model = gradients.models.build(config, 0)
    learnt = []
    for weights in (model.state_dict(), gradients.trained_state(config, "topics", torch.device("cpu"))):
        model.load_state_dict(weights)
        with torch.no_grad():
            loss = float(cross_entropy(model, *stream.held_out(16, 128)))
        learnt.append((stream.unigram - loss) / (stream.unigram - stream.bigram))
    assert learnt[0] < 0
    assert 0.5 <= learnt[1] < (stream.unigram - stream.floor) / (stream.unigram - stream.bigram)


FAULTS: dict[str, tuple[Plant, float, float]] = {
    "embedding.weight": (on_gradient("embedding.weight", every_second_column_flipped), -4, -2),
    "layers.1.mlp_norm.weight": (on_gradient("layers.1.mlp_norm.weight", torch.zeros_like), -0.1, 0.1),
    "lm_head.weight": (on_gradient("lm_head.weight", lambda g: -g), -6.1, -5.9),
    "layers.0.attention.q_proj.weight": (on_gradient("layers.0.attention.q_proj.weight", lambda g: 2 * g), -1.5, 1.5),
}
"""Faults in the gradient of one parameter, by its name, with the SQNR in dB that is left."""


@pytest.fixture
def measure(session, eager, monkeypatch):
    """Measure a cell, with a fault in the model of the recipe."""

    def run(recipe: str, plant: Plant | None = None) -> Measurements:
        real = gradients.apply

        def planted(*args: Any, **options: Any) -> ConvertedModel:
            converted = real(*args, **options)
            if plant is not None:
                plant(converted.model)
            return converted

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gradients, "apply", planted)
            values, notes = layers.measure(session.spec(CELLS[recipe]))
        return Measurements(
            cell=CELLS[recipe], check="layers", values=values, notes=notes, provenance=PROVENANCE, session="s"
        )

    return run


@pytest.mark.slow
@pytest.mark.parametrize("recipe", CELLS)
def test_sound_cell_passes_by_rules(recipe, measure):
    found = numerics.judge(measure(recipe), POLICY, MeasuredNumbers())
    assert found.status == "pass" and not found.unmeasured, found.message()


@pytest.mark.slow
@pytest.mark.parametrize(("place", "recipe"), list(zip(FAULTS, 2 * list(CELLS), strict=True)))
def test_wrong_gradient_fails_at_its_parameter_only(place, recipe, measure):
    plant, low, high = FAULTS[place]
    verdict = numerics.judge(record := measure(recipe, plant), POLICY, MeasuredNumbers())
    assert [name for name, _ in verdict.lines if " @ " in name] == [f"gradient sqnr @ {place}"]
    assert low <= measured((record.values, []))[f"gradient sqnr @ {place}"] <= high


@pytest.mark.slow
def test_every_parameter_has_a_number(measure, session):
    """Norms, embedding and head too, and biases where the model has them. Other tests of this process do not get this short training: once
    the output of docs/recipes.md was made with it."""
    spec = session.spec(CELLS["bf16"])
    for model in (spec.model, replace(spec.model, bias=True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gradients, "TRAINING", replace(gradients.TRAINING, steps=2))
            patch.setattr(gradients, "trained_state", gradients.trained_state.__wrapped__)
            values, _ = layers.measure(replace(spec, model=model))
        names = {m.where for m in values if m.metric == "gradient sqnr"}
        assert names == {n for n, _ in gradients.models.build(model, 0).named_parameters()}
        assert {"embedding.weight", "norm.weight", "lm_head.weight", "layers.0.attention_norm.weight"} <= names
        assert ("layers.0.attention.q_proj.bias" in names) == model.bias


def test_gradient_missing_on_one_side_is_an_error(session, eager, monkeypatch):
    real = layers.gradients

    def without(converted, batch):
        found = real(converted, batch)
        if converted.recipe.linear.quantized:
            del found["norm.weight"]
        return found

    monkeypatch.setattr(layers, "gradients", without)
    monkeypatch.setattr(gradients, "trained_state", lambda config, *_: gradients.models.build(config, 0).state_dict())
    with pytest.raises(ValueError, match=r"gradients of \['norm.weight'\] are missing on one side"):
        layers.measure(session.subject("te-current"))
