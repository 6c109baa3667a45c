"""The check ``twins``: a made-up option with a fault is red at its own place, and one that does nothing is no evidence."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fp8parity.checks import twins
from fp8parity.recipes.switches import Switch, Twin
from narrowed import some
from sessions import Session, cell, verdict
from torch import Tensor

from conftest import measured, subject

CALLS = itertools.count()


def backward(after: Callable[[dict[str, Tensor]], None]) -> Callable[[Twin], None]:
    """A switch that changes gradients after each backward pass."""

    def on(twin: Twin) -> None:
        def run(loss: Tensor) -> None:
            loss.backward()
            after(dict(twin.converted.model.named_parameters()))

        twin.backward = run

    return on


STATIC: dict[str, Tensor] = {}


def static(parameters: dict[str, Tensor]) -> None:
    """Gradients are handed out in buffers that the next microbatch overwrites (TE issue 2937)."""
    for name, p in parameters.items():
        p.grad = STATIC.setdefault(name, torch.empty_like(p)).copy_(some(p.grad))


def cloned(parameters: dict[str, Tensor]) -> None:
    for p in parameters.values():
        p.grad = some(p.grad).clone()


def halved(parameters: dict[str, Tensor]) -> None:
    """Gradients in E5M2 are read as smaller ones (TE issue 3342)."""
    some(parameters["layers.0.attention.k_proj.weight"].grad).mul_(0.5)


def over_all(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean counts ignored targets (TE issue 2476)."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="sum") / targets.numel()


def zero(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss without a gradient (Megatron-LM issue 1750)."""
    return twins.loss_of(logits.detach(), targets) + 0 * logits.float().sum()


def losing(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Twin], None]:
    return lambda twin: setattr(twin, "loss", loss)


OPTIONS: dict[str, tuple[Switch, set[str]]] = {
    "sound, not exact": (Switch("x", "", backward(cloned), exact=False), set()),
    "halved, not exact": (Switch("x", "", backward(halved), exact=False), {"twin distance", "twin sqnr loss"}),
    "static gradients": (Switch("x", "", backward(static)), {"twin difference", "twin sqnr loss"}),
    "mean over all": (Switch("x", "", losing(over_all), exact=False), {"twin sqnr loss"}),
    "loss without gradient": (Switch("x", "", losing(zero), exact=False), {"twin distance", "twin sqnr loss"}),
    "does nothing, not exact": (Switch("x", "", exact=False), {"switched"}),
}
"""A made-up option, and the metrics that must be outside of their limits."""


@pytest.mark.slow
def test_option_with_a_fault_is_named(session: Session, monkeypatch, eager):
    rows = [replace(switch, name=name) for name, (switch, _) in OPTIONS.items()]
    monkeypatch.setattr(twins, "SWITCHES", (*twins.SWITCHES[:2], *rows))
    monkeypatch.setattr("fp8parity.judging.numerics.SHOWN", 100)
    STATIC.clear()
    found = verdict(session.measure("twins", cell("te-current", model="nano")))
    assert found.status == "fail"
    wrong = {f"{metric} @ {name}" for name, (_, metrics) in OPTIONS.items() for metric in metrics}
    assert {place for place, _ in found.lines if " @ " in place} == wrong


@pytest.mark.slow
def test_operations_that_do_not_repeat_are_no_evidence(session: Session, monkeypatch, eager):
    real = twins.Side.step

    def step(self: twins.Side, number: int) -> dict[str, Tensor]:
        for _ in range(next(CALLS) % 5):
            torch.ones(()).neg()
        return real(self, number)

    monkeypatch.setattr(twins.Side, "step", step)
    monkeypatch.setattr(twins, "SWITCHES", twins.SWITCHES[:2])
    found = verdict(session.measure("twins", cell("te-current", model="nano")))
    assert found.status == "fail"
    assert {place for place, _ in found.lines if place != "note"} == {f"switched @ {s.name}" for s in twins.SWITCHES}


@pytest.mark.slow
def test_skipped_option_is_a_note_and_no_number(session: Session, monkeypatch, eager):
    absent = Switch("x", "", missing=lambda converted: "the package has no x")
    monkeypatch.setattr(twins, "SWITCHES", (*twins.SWITCHES[:2], absent))
    record = session.measure("twins", cell("te-current", model="nano"))
    assert "skipped x: the package has no x" in record.notes
    assert not [m for m in record.values if m.where == "x"]
    assert verdict(record).status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("lacking", ["recomputed activations", "FP32 main gradients"])
def test_option_of_every_recipe_may_not_be_skipped(lacking, session: Session, monkeypatch, eager):
    rows = [replace(s, missing=lambda c: "no reason") if s.name == lacking else s for s in twins.SWITCHES[:2]]
    monkeypatch.setattr(twins, "SWITCHES", tuple(rows))
    found = verdict(session.measure("twins", cell("te-current", model="nano")))
    assert found.status == "error" and f"switched @ {lacking}" in [place for place, _ in found.lines]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "te-nvfp4", "ao-mxfp8"])  # tests/test_faults.py has others
def test_sound_options_pass_with_each_kind_of_recipe(recipe, session: Session, eager):
    of = cell(recipe, "native" if recipe == "bf16" else "emulated", model="nano")
    found = verdict(session.measure("twins", of))
    assert found.status == "pass", found.message()


@pytest.mark.slow
def test_compiled_torchao_is_compared(session: Session):
    values = measured(twins.measure(subject(session, "ao-rowwise")))
    assert values["switched @ compiled"] == 1 and values["twin distance @ compiled"] < 0.01
    assert values["twin distance @ this project's emulation"] < 1e-4, "scales are powers of two"
