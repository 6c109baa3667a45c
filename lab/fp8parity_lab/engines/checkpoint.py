"""Make a checkpoint of a model of this project, and the sequences that it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from fp8parity.checks.gradients import made_once
from fp8parity.recipes.conversion import control
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_CORPUS, Execution
from fp8parity.training.hardware import pinned_threads
from fp8parity.training.loop import microbatches
from fp8parity.training.optimizer import MasterWeightOptimizer
from fp8parity.training.step import update
from fp8parity.workload import corpus, models
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.dimensions import Routing
from fp8parity.workload.schedule import Schedule
from torch import Tensor

from fp8parity_lab.engines.models import FolderSubject, Subject, Weights, sampled
from fp8parity_lab.engines.scores import Scores

BEFORE, LAST, INITIAL = "before", "last", "initial"
"""The states that a checkpoint holds: one step before its last one, the last one, and the first."""


@dataclass(frozen=True)
class Plan:
    """What is scored: ``sequences`` of ``length`` tokens, of which ``prompt`` are given, after ``steps`` of BF16."""

    steps: int
    sequences: int
    prompt: int
    length: int
    seed: int = 0


def free(config: ModelConfig) -> ModelConfig:
    """Return a model whose router chooses: a fixed choice depends on a token's place in the batch."""
    return replace(config, experts=config.experts and replace(config.experts, routing=Routing.FREE))


def trained(
    config: ModelConfig, schedule: Schedule, plan: Plan, device: torch.device, folder: Path
) -> dict[str, Weights]:
    """Train in BF16 for the plan's steps, once for a folder. Return the states by name."""

    def train() -> Weights:
        with pinned_threads(schedule.threads):
            converted = control(models.build(config, plan.seed, device=device))
            optimizer = MasterWeightOptimizer(converted, schedule)
            states = {INITIAL: _copied(converted.model)}
            for step in range(plan.steps):
                if step == plan.steps - 1:
                    states[BEFORE] = _copied(converted.model)
                optimizer.set_lr(schedule.lr_at(step))
                data = microbatches(corpus.load(DEFAULT_CORPUS), schedule, plan.seed, step, device)
                update(converted, optimizer, schedule, data)
            states[LAST] = _copied(converted.model)
        return {f"{state}/{name}": w for state, weights in states.items() for name, w in weights.items()}

    if not 1 <= plan.steps <= schedule.steps:
        raise ValueError(f"--steps {plan.steps}: the schedule of {config.name} has 1 to {schedule.steps}")
    found = made_once(folder, f"weights-{key(config, schedule, plan.steps, plan.seed, device.type)}", train)
    return {
        state: {n.partition("/")[2]: w for n, w in found.items() if n.startswith(f"{state}/")}
        for state in (INITIAL, BEFORE, LAST)
    }


def _copied(model: torch.nn.Module) -> Weights:
    return {name: p.detach().to("cpu", copy=True) for name, p in model.named_parameters()}


def key(*parts: object) -> str:
    """Return a short name of what was computed, and by which torch."""
    return hashlib.sha256(repr((*parts, torch.__version__)).encode()).hexdigest()[:16]


def sequences(subject: Subject, plan: Plan, device: torch.device, folder: Path, name: str) -> Tensor:
    """Return the plan's sequences [B, length], written by the checkpoint in BF16, once for a folder.

    A model of this project begins with held-out text; a folder's model with its first token alone.
    """

    def make() -> Weights:
        plain = subject.build(RECIPES[CONTROL_RECIPE], Execution.NATIVE)
        if isinstance(subject, FolderSubject):
            prompts = torch.full((plan.sequences, 1), subject.first)
        else:
            prompts = corpus.load(DEFAULT_CORPUS).held_out(plan.sequences, plan.prompt)[0]
        return {"ids": sampled(subject, plain, prompts.to(device), plan.length, plan.seed).cpu()}

    return made_once(folder, f"sequences-{name}", make)["ids"].to(device)


def as_scores(ids: Tensor, prompt: int, found: Mapping[str, Tensor]) -> Scores:
    """Return what was computed as scores of the tokens after the prompt."""
    arrays = [np.asarray(t.cpu()) for t in (ids[:, prompt:], found["logprobs"].double(), found["top"])]
    tokens, logprobs, top = (list(a) for a in arrays)
    return Scores(tokens, logprobs, top)
