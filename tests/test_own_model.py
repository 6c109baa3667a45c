"""Models that are not ours: a GPT-2, a Hugging Face Llama and a ViT are converted by the same adapters and trained by the same loop."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from fp8parity import recipes
from fp8parity.recipes.conversion import placed
from fp8parity.recipes.registry import ADAPTERS
from fp8parity.records.cell import Execution
from fp8parity.workload.own import OwnModel
from own_models import CPU, Pair, own, small, trained
from torch import Tensor, nn

BLOCK = ("attn", "fc", "out", "proj")
LLAMA = ("mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", *(f"self_attn.{x}_proj" for x in "koqv"))
CONVERTED = {
    "my_models": [f"h.{i}.{name}" for i in range(2) for name in BLOCK],
    "my_llama": [f"model.layers.{i}.{name}" for i in range(2) for name in LLAMA],
    "my_vit": [f"blocks.{i}.{name}" for i in range(2) for name in BLOCK],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recipe"), [("my_models", "te-current"), ("my_llama", "ao-tensorwise"), ("my_vit", "te-current")]
)
def test_linears_of_blocks_are_converted_and_trained(name, recipe, eager):
    """Convolutions, embeddings, norms and the head are left alone. Every parameter has a gradient, biases too."""
    model = own(name)
    control, run = trained(model), trained(model, recipe)
    assert sorted(m.fqn for m in run.inventory) == CONVERTED[name] and control.inventory == []
    assert run.initial_weights == control.initial_weights and run.final_weights != control.final_weights
    assert 0 < max(abs(a / b - 1) for a, b in zip(run.loss, control.loss, strict=True)) < 0.02
    assert run.first_gradients.keys() == control.first_gradients.keys() == set(model.identity()["parameters"])
    assert [n for n, norm in run.first_gradients.items() if not norm > 0] == []
    assert run.parameters == control.parameters > 50_000


def states() -> tuple[object, ...]:
    return torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())


def test_generators_of_the_process_are_unchanged(monkeypatch):
    """Those of GPUs too, which ``torch.manual_seed`` would seed: without a GPU in use, once the first one is used."""
    before, seeded = states(), list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    model = small()
    assert model.parameters and model.fingerprint
    assert (states(), seeded) == (before, [])


def test_tied_linear_remains_tied(eager):
    model = small().initial(0, CPU)
    converted = recipes.apply(model, recipes.get("te-current"), Execution.EMULATED, tokens=128).model
    assert converted.get_parameter("unembed.weight") is converted.get_parameter("embedding.weight")
    run = trained(small(), "te-current")
    assert [m.fqn for m in run.inventory] == ["inner", "unembed"] and run.first_gradients["embedding.weight"] > 0


class Copies:
    """An adapter whose modules hold copies of weight and bias that are trained, as a vendor's own parameters are."""

    def __init__(self) -> None:
        self.real = recipes.registry.adapter("emulated")

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def convert(
        self, model: nn.Module, recipe: recipes.Recipe, execution: Execution, seed: int
    ) -> recipes.ConvertedModel:
        for name in placed(model, recipe):
            linear = model.get_submodule(name)
            linear.weight = nn.Parameter(linear.get_parameter("weight").detach().clone())
        return self.real.convert(model, recipe, execution, seed)


@pytest.fixture
def copying(monkeypatch):
    monkeypatch.setitem(ADAPTERS, "emulated", Copies())


def test_copy_of_a_tied_or_frozen_weight_is_refused(copying, eager):
    with pytest.raises(ValueError, match="embedding.weight and unembed.weight are tied, and the converted modules"):
        trained(small(), "te-current")
    with pytest.raises(ValueError, match="te-current: inner.weight is frozen, and the converted module trains it"):
        trained(small(factory=frozen), "te-current")
    assert [m.fqn for m in trained(small(keep=("unembed",)), "te-current").inventory] == ["inner"]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (("inner", "unenbed"), "unknown part of a linear's name in keep 'unenbed': did you mean unembed?"),
        (("embedding",), "unknown part of a linear's name in keep 'embedding'"),
        ("inner", r"keep is the string 'inner'; give a tuple: keep=\('inner',\)"),
    ],
)
def test_keep_that_names_no_linear_is_refused(keep, message):
    """The embedding has no linear: to keep it says nothing."""
    with pytest.raises(ValueError, match=message):
        trained(small(keep=keep, factory=lambda seed: Pair(tied=False)))


def frozen(seed: int) -> nn.Module:
    module = Pair(tied=False)
    module.inner.weight.requires_grad_(False)
    return module


class WithLoRA(Pair):
    def __init__(self) -> None:
        super().__init__(tied=False)
        self.base, self.low_a, self.low_b = self.inner, nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
        del self.inner
        for p in (*self.base.parameters(), *self.embedding.parameters()):
            p.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.unembed(self.base(x) + self.low_b(self.low_a(x)))


@pytest.mark.parametrize("recipe", ["bf16", "te-current"])
def test_frozen_layers_are_converted_and_unchanged(recipe, eager, monkeypatch):
    """Weight decay and the optimizer leave them alone, and the gradient passes through them in FP8."""
    model = small(factory=lambda seed: WithLoRA(), keep=("low_",))
    assert model.parameters and model.rows_of(model.schedule, CPU)  # checked before, so that one more module is made
    kept: list[nn.Module] = []
    initial = OwnModel.initial

    def keep(self: OwnModel, seed: int, device: torch.device) -> nn.Module:
        kept.append(initial(self, seed, device))
        return kept[-1]

    monkeypatch.setattr(OwnModel, "initial", keep)
    before = dict(initial(model, 0, CPU).named_parameters())
    run = trained(model, recipe)
    module, *references = kept
    assert len(references) == (0 if recipe == "bf16" else 2)  # a run of a recipe is probed twice
    moved = sorted(n for n, p in module.named_parameters() if not torch.equal(p, before[n]))
    assert moved == ["low_a.weight", "low_b.weight", "unembed.weight"] == sorted(run.first_gradients)
    assert [m.fqn for m in run.inventory] == ([] if recipe == "bf16" else ["unembed", "base"])
