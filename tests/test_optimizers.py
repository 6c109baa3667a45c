"""Optimizers by name: sound ones pass, a planted fault is red at the update, and what cannot train says so before it does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from faults.looks import canary_of, canary_verdict
from faults.model import optimizer
from fp8parity.checks import checkpoint
from fp8parity.gate import context
from fp8parity.numerics.quantized_weights import QuantizedWeight
from fp8parity.recipes import RECIPES, apply
from fp8parity.records.cell import Execution, Mode
from fp8parity.training import loop
from fp8parity.training.step import MasterWeightOptimizer
from fp8parity.training.variants import Parts, Variant
from fp8parity.workload import models, schedule
from fp8parity.workload.optimizers import ADAMW, OPTIMIZERS
from fp8parity.workload.own import OwnModel
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import Schedule, spec_hash
from torch import nn

from conftest import measured

EIGHT_BIT, MUON, TE = "micro-ao-adamw8bit", "micro-muon", "micro-te-adam-bf16"


class FusedAdam(torch.optim.AdamW):
    """In place of TE's, which needs a GPU: it rounds its moments after each step."""

    def __init__(self, params: Any, *, exp_avg_dtype: torch.dtype, exp_avg_sq_dtype: torch.dtype, **terms: Any) -> None:
        super().__init__(params, **terms)
        self.dtypes = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # as the package's, it returns no loss
        super().step(closure)
        for state in self.state.values():
            for name, dtype in self.dtypes.items():
                state[name].copy_(state[name].to(dtype))


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    for name in ("te-adam-bf16", "te-adam-fp16", "te-adam-fp8"):
        monkeypatch.setitem(OPTIMIZERS, name, replace(OPTIMIZERS[name], maker=f"{__name__}:FusedAdam"))


def replayed(model: str, variant: Variant | None = None) -> Any:
    return canary_verdict(canary_of(variant, "te-current", model), "te-current", model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "ao-adamw8bit", "ao-adamwfp8", "te-adam-bf16"])
def test_sound_optimizer_passes(name: str):
    found = replayed(f"micro-{name}")
    assert found.status == "pass", found.message()


def before_step(change: Callable[[Any], object]) -> Variant:
    """Change the optimizer before each of its steps."""

    def plant(parts: Parts) -> Parts:
        real = parts.optimizer.step

        def step(clip: float) -> torch.Tensor:
            change(parts.optimizer)
            return real(clip)

        parts.optimizer.step = step  # type: ignore[method-assign]  # the fault replaces the method of one object
        return parts

    return Variant("", "", plant)


def late(o: Any) -> None:
    """Let bias correction see a step long after the first."""
    for of in (*o.groups, *o.state.values()):
        if "step" in of or of.get("kind"):
            of["step"] = of["step"] * 0 + 9999 if isinstance(of.get("step"), torch.Tensor) else 9999


def flushed(o: Any) -> None:
    """Let small second moments be zero."""
    for state in o.state.values():
        square = state.get("exp_avg_sq")
        if square is not None:
            values = square.dequantize() if hasattr(square, "codes") else square
            square.copy_(torch.where(values < values.amax() / 64, 0, values))


FAULTS = {
    "beta2 of TE": (TE, optimizer(betas=(0.9, 0.999))),
    "no weight decay": (EIGHT_BIT, optimizer(weight_decay=0.0)),
    "update without its scale": (MUON, optimizer(adjust_lr_fn="original")),
    "other momentum": (MUON, optimizer(momentum=0.9)),
    "no bias correction": (TE, before_step(late)),
    "moments of TE flushed": (TE, before_step(flushed)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_red_at_the_update(fault: str):
    found = replayed(*FAULTS[fault])
    assert found.status == "fail"
    failing = {f.metric for f in found.failing}
    assert failing & {"update gain", "update sqnr"}, found.message()
    assert failing - {"update gain", "update sqnr"} == ({"optimizer steps"} if fault == "no bias correction" else set())


def nothing() -> bool:
    """No GPU is looked for."""
    pytest.fail("asks for a GPU")


def own(name: str, optimizer: str, *layers: nn.Module) -> OwnModel:
    module = nn.Sequential(*layers)
    return OwnModel(
        name, lambda seed: copy.deepcopy(module), lambda m, x: m(x).mean(), lambda seed, step: (torch.zeros(1),),
        Schedule(steps=20, rows=1, length=1, lr=1e-3, optimizer=optimizer),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["moun", "AdamW"])
def test_unknown_optimizer_is_refused(name: str):
    with pytest.raises(ValueError, match="unknown optimizer|did you mean"):
        Schedule(steps=20, rows=1, length=1, lr=1e-3, optimizer=name)


def test_model_without_hidden_matrices_is_refused_before_training():
    with pytest.raises(ValueError, match="^mine: Muon updates the matrices between embedding and head"):
        context._refuse_unfit(own("mine", "muon", nn.Embedding(4, 8), nn.LayerNorm(8)), nothing)
    context._refuse_unfit(own("mine", "muon", nn.Linear(4, 8)), nothing)
    context._refuse_unfit(own("mine", ADAMW, nn.LayerNorm(8)), nothing)


@pytest.mark.parametrize("recipe", ["te-mxfp8-head"])
def test_hidden_matrices_are_the_same_for_each_recipe(recipe: str):
    micro = presets()["micro-muon"]
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    converted = apply(models.build(micro.model, 0), RECIPES[recipe], execution, tokens=1024)
    found = MasterWeightOptimizer(converted, micro.schedule)
    assert len(found.hidden) == 14
    assert all(name.startswith("layers.") for name in found.hidden)
    assert {group["kind"]: len(group["params"]) for group in found.groups} == {
        "hidden matrices": 14, "matrices": 2, "vectors": 5,
    }  # fmt: skip


def test_missing_package_is_refused_before_training(monkeypatch):
    gone = replace(OPTIMIZERS["ao-adamw8bit"], maker="package_without_name:AdamW")
    monkeypatch.setitem(OPTIMIZERS, "ao-adamw8bit", gone)
    with pytest.raises(ValueError, match="^micro-ao-adamw8bit: optimizer ao-adamw8bit needs the package package_wi"):
        context._refuse_unfit(presets()["micro-ao-adamw8bit"], nothing)


def test_optimizer_of_a_gpu_is_refused_without_one():
    with pytest.raises(ValueError, match="^micro-te-adam-fp8: optimizer te-adam-fp8 runs on a GPU only"):
        context._refuse_unfit(presets()["micro-te-adam-fp8"], lambda: False)
    context._refuse_unfit(presets()["micro-te-adam-fp8"], lambda: True)


def test_no_graph_holds_a_step_that_reads_the_host():
    of = RECIPES["te-current"], Execution.NATIVE, torch.device("cuda")
    assert loop.mode_for(*of) == Mode.GRAPHED
    assert loop.mode_for(*of, optimizer="muon") == Mode.EAGER
    with pytest.raises(ValueError, match="a CUDA graph cannot hold a step of muon; use --mode eager"):
        loop.mode_for(*of, Mode.GRAPHED, "muon")


def test_hash_leaves_the_default_out_and_names_others():
    micro = presets()["micro"]
    of = {name: spec_hash(micro.model, replace(micro.schedule, optimizer=name), "topics") for name in OPTIMIZERS}
    assert len(set(of.values())) == len(OPTIMIZERS)
    fields = schedule.asdict(micro.schedule)
    assert "optimizer" in fields
    assert "optimizer" not in micro.schedule.numbers


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [False, True])
def test_weights_of_rounded_masters_are_red(session, monkeypatch, rounds: bool):
    """Megatron-LM 4987: FP8 weights cast from BF16 on one side, and from FP32 masters on the other."""
    if rounds:
        real = QuantizedWeight._write
        monkeypatch.setattr(QuantizedWeight, "_write", lambda w, source: real(w, source.bfloat16().float()))
    found = measured(checkpoint.measure(session.subject("te-block")))
    fp32, bf16 = (found[f"weights not of {of} masters @ quantized weights"] for of in ("FP32", "BF16"))
    exact, other = (bf16, fp32) if rounds else (fp32, bf16)
    assert exact == 0
    assert 0.01 < other < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("name", ["muon", "ao-adamw8bit"])
def test_checkpoint_keeps_the_state(session, name: str):
    spec = session.subject("bf16", "native")
    found = measured(checkpoint.measure(replace(spec, schedule=replace(spec.schedule, optimizer=name))))
    assert {v for k, v in found.items() if "changed" in k or "difference" in k} == {0.0}
