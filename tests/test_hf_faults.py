"""Faults planted in tiny Hugging Face models and in how they are converted: sound runs pass, each fault is red, with the right blame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fp8parity import recipes
from fp8parity.judging import loss, policy
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import inventories
from fp8parity.judging.references.inventories import Inventories
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.spec import PLAIN
from fp8parity.recipes.registry import ADAPTERS, adapter
from fp8parity.records.schema import Trajectory
from own_models import trained
from sessions import DAY

transformers = pytest.importorskip("transformers")

from fp8parity.workload import corpus, hf_tiny  # noqa: E402 - with transformers only

SHORT = """
[[extends]]
goldens = "shipped"

[[loss]]
margin = 0.005
seeds = [3]
min_loss_drop = 0.0
bf16_margin = 0.0001
why = "a few steps, in which a model learns nothing"
"""
STEPS, SEEDS, RECIPE = 10, (0, 1, 2), "te-current"
Plant = Callable[[pytest.MonkeyPatch], object]


def tiny(name: str) -> hf_tiny.TinyModel:
    [made] = hf_tiny.named(f"hf:{name}")
    return replace(
        made, schedule=replace(made.schedule, steps=STEPS, warmup=2, tail=4, validation_every=STEPS, validation_rows=4)
    )


@pytest.fixture
def judged(once, tmp_path, eager):
    """Returns the verdict on new runs of a cell. BF16's sound runs are its golden, and its control unless it is the cell."""
    (tmp_path / policy.FILE).write_text(SHORT)
    rules: Policy = policy.load(tmp_path, DAY)

    def of(name: str, recipe: str, seeds: tuple[int, ...], plant: Plant = lambda patch: None) -> Verdict:
        model = tiny(name)
        sound: list[Trajectory] = once(f"hf-{name}", lambda: [trained(model, seed=s) for s in SEEDS])
        known: list[Trajectory] = once(f"hf-{name}-{RECIPE}", lambda: [trained(model, RECIPE)])
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            runs = [trained(tiny(name), recipe, s) for s in seeds]
        stored = MeasuredNumbers(inventories=inventories.updated(Inventories(), known)[0])
        return loss.judge(runs, runs if recipe == "bf16" else sound[: len(seeds)], from_runs(sound, []), rules, stored)

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"),
    [("modernbert", "bf16"), ("gpt_oss", RECIPE)],
)
def test_sound_run_passes(name, recipe, judged):
    found = judged(name, recipe, SEEDS)
    assert found.status == "pass", found.message()


def gradient_scaled(patch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

    def scaled(self: Any, x: Any) -> Any:
        y = real(self, x)
        return 0.98 * y + (0.02 * y).detach()

    real = Qwen3MLP.forward
    patch.setattr(Qwen3MLP, "forward", scaled)


def causal(*names: str) -> Plant:
    """Replace masks of ModernBERT, which look to both sides, by causal ones."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        from transformers.masking_utils import create_causal_mask
        from transformers.models.modernbert import modeling_modernbert

        for name in names:
            mask = lambda **given: create_causal_mask(**given, past_key_values=None)  # noqa: E731
            patch.setattr(modeling_modernbert, name, mask)

    return plant


def other_masks(patch: pytest.MonkeyPatch) -> None:
    real = corpus._masked
    patch.setattr(corpus, "_masked", lambda ids, stream, start: real(ids, stream + 5, start))


OF_MODEL = {
    "gradient scaled": ("qwen3", gradient_scaled),
    "attention of the local layers made causal": ("modernbert", causal("create_bidirectional_sliding_window_mask")),
    "masks that differ": ("modernbert", other_masks),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plant"), OF_MODEL.values(), ids=OF_MODEL)
def test_fault_of_the_model_is_a_change_of_bf16(name, plant, judged):
    found = judged(name, "bf16", (0,), plant)
    assert found.status == "drift" and "BF16 changed" in found.message(), found.message()


class Changed:
    """An adapter with a change of the model that it converted."""

    def __init__(self, change: Callable[[Any], None]) -> None:
        self.real, self.change = adapter("emulated"), change

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def convert(self, *given: Any) -> recipes.ConvertedModel:
        made = self.real.convert(*given)
        self.change(made)
        return made


def converted(change: Callable[[Any], None]) -> Plant:
    return lambda patch: patch.setitem(ADAPTERS, "emulated", Changed(change))


def nothing(made: Any) -> None:
    for module in made.model.modules():
        if isinstance(module, EmulatedLinear):
            module.spec = PLAIN


def not_the_experts(patch: pytest.MonkeyPatch) -> None:
    real = recipes.get(RECIPE)
    patch.setitem(recipes.RECIPES, RECIPE, replace(real, filters=(*real.filters, "experts")))


OF_RECIPE = {
    "filter that converts nothing": ("qwen3", converted(nothing), "fail", "equal BF16's to the bit: nothing was quantized"),
    "experts left in BF16": ("gpt_oss", not_the_experts, "error", "converted 8 modules, and te-current converts 40"),
    "masks that differ from BF16's": ("modernbert", other_masks, "fail", "the recipe"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "plant", "status", "words"), OF_RECIPE.values(), ids=OF_RECIPE)
def test_fault_of_the_conversion_is_blamed_on_the_recipe(name, plant, status, words, judged):
    found = judged(name, RECIPE, (0,), plant)
    assert found.status == status and words in found.message(), found.message()


def test_encoder_that_is_causal_is_refused(monkeypatch):
    causal("create_bidirectional_mask", "create_bidirectional_sliding_window_mask")(monkeypatch)
    with pytest.raises(ValueError, match="its logits do not depend on later tokens: it is no encoder$"):
        tiny("modernbert")
