"""Trace a step with fused layers: their linears cannot be seen, so a layer is held to the noise of its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from faults import moments, places
from fp8parity.numerics import emulation
from fp8parity.recipes.adapter import ConvertedModel
from fp8parity.records.cell import Execution
from fp8parity.training import hardware, loop
from fp8parity_lab.cli import trace as trace_command
from torch import Tensor, nn
from traced import OUT, traced

FIRST, SECOND = "layers.0", "layers.1"
LINEARS = [*(f"attention.{n}_proj" for n in "qkvo"), *(f"mlp.{n}_proj" for n in ("gate", "up", "down"))]


class FusedBlock(nn.Module):
    """A block as a vendor's layer: parameters of other names, and no modules inside."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = [block]
        for name, p in block.named_parameters():
            self.register_parameter(name.replace(".", "__"), p)

    def forward(self, x: Tensor, rope: Tensor) -> Any:
        return self.block[0](x, rope)


@pytest.fixture
def fused(monkeypatch):
    """Blocks are fused after the conversion, and after a change of the model."""
    real = loop.apply
    monkeypatch.setattr(hardware, "reset_state", lambda: None)
    monkeypatch.setattr(emulation, "compiles", lambda: False)

    def plant(change: Callable[[Any], object] = lambda model: None) -> None:
        def apply(*args: Any, **options: Any) -> ConvertedModel:
            made = real(*args, **options)
            change(made.model)
            layers: Any = made.model.get_submodule("layers")
            for i, block in enumerate(layers):
                layers[i] = FusedBlock(block)
            names = lambda tensors: {name.replace("__", "."): t for name, t in tensors.items()}  # noqa: E731
            return replace(made, execution=Execution.FUSED, original=names)

        monkeypatch.setattr(loop, "apply", apply)

    return plant


@pytest.mark.parametrize(("recipe", "seed"), [("te-delayed", 0), ("te-current", 1), ("te-mxfp8", 0), ("te-nvfp4", 1)])
def test_sound_step_of_fused_layers_has_none_over_its_budget(recipe, seed, fused):
    fused()
    found = traced(recipe, seed=seed)
    assert (found.over, found.unmatched, found.far, found.whole) == ((), (), (), (FIRST, SECOND))
    assert len(found.operations) == 44
    assert trace_command.sentences(found)[-1] == (
        "Each is held as one operation, because its linears have no counterpart: layers.0, layers.1."
    )


def everywhere(block: str, change: Callable[[str], places.Change]) -> places.Change:
    """Each linear of a block is changed."""

    def changed(model: nn.Module) -> None:
        for name in LINEARS:
            change(f"{block}.{name}")(model)

    return changed


def of_gradient(name: str, factor: float) -> places.Change:
    return lambda model: model.get_parameter(name).register_hook(lambda g: g * factor)


def of_input_gradient(model: nn.Module) -> None:
    """The gradient of what enters the second block is a tenth large."""

    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        args[0].register_hook(lambda g: g * 1.1)

    model.get_submodule(f"{SECOND}.attention_norm").register_forward_pre_hook(hook)


def without_residual(module: Any) -> None:
    block = module.get_submodule(FIRST)
    block.forward = lambda x, rope: (y := block.attention(block.attention_norm(x), rope)) + block.mlp(block.mlp_norm(y))


FAULTS = {
    "BF16": (everywhere(FIRST, places.not_quantized), f"output of {FIRST}"),
    "an output": (moments.results(OUT, lambda y: y * 2), f"output of {FIRST}"),
    "a residual": (without_residual, f"output of {FIRST}"),
    "an input's gradient": (of_input_gradient, f"gradient of input of {SECOND}"),
    "a weight's gradient": (of_gradient(f"{OUT}.weight", 1.2), f"wgrad of {OUT}"),
}


@pytest.mark.parametrize(("change", "first"), FAULTS.values(), ids=FAULTS)
def test_fault_inside_of_a_fused_layer_is_named(change, first, fused):
    fused(change)
    assert [o.name for o in traced("te-current").over][:1] == [first]
