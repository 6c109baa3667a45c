"""Score the sequences of a checkpoint with each recipe, once as trainer and once by engine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import torch
from fp8parity import Routing
from fp8parity.checks.gradients import made_once
from fp8parity.recipes import Recipe
from fp8parity.recipes.conversion import control
from fp8parity.recipes.registry import RECIPES, matching, skip_reason
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_CORPUS, Execution
from fp8parity.training import provenance
from fp8parity.training.hardware import reset_state
from fp8parity.training.loop import microbatches
from fp8parity.training.optimizer import MasterWeightOptimizer
from fp8parity.training.step import update
from fp8parity.workload import corpus, models
from fp8parity.workload.presets import Preset
from torch import Tensor

from fp8parity_lab.engines.models import (
    VARIANTS,
    FolderSubject,
    OwnSubject,
    Subject,
    calibrated,
    engine_scores,
    sampled,
    trainer_scores,
)
from fp8parity_lab.engines.scores import Scores
from fp8parity_lab.executions import first_runnable

TRAINER, INITIAL, BEFORE, LAST = "trainer", "initial", "before", "last"
"""A way to score next to ``VARIANTS``; and the states of a training: the first, one step before the last, the last."""


@dataclass(frozen=True)
class Plan:
    """What is scored: ``sequences`` of ``length`` tokens, the first ``prompt`` given, after ``steps`` of BF16."""

    steps: int
    sequences: int
    prompt: int
    length: int
    seed: int
    device: torch.device
    folder: Path = field(repr=False)


class Chosen(NamedTuple):
    """The recipes that run here with their executions, BF16 first, and why others do not."""

    runs: Mapping[str, tuple[Recipe, Execution]]
    not_run: Mapping[str, str]


def chosen(patterns: Sequence[str], execution: Execution | None, capability: tuple[int, int] | None) -> Chosen:
    """Choose the recipes of patterns, by default all of the catalogue."""
    runs, not_run = {CONTROL_RECIPE: (RECIPES[CONTROL_RECIPE], Execution.NATIVE)}, dict[str, str]()
    for recipe in [r for r in matching(patterns or ["*"]) if r.name != CONTROL_RECIPE]:
        own = execution or first_runnable(recipe, capability) or Execution.EMULATED
        if why := skip_reason(recipe, own, capability):
            not_run[recipe.name] = why
        else:
            runs[recipe.name] = recipe, own
    return Chosen(runs, not_run)


def key(plan: Plan, *parts: object) -> str:
    """Return a short name of what was computed, by which packages and code, and where."""
    where = (provenance.device_name(plan.device), provenance.versions(), provenance.library())
    return hashlib.sha256(repr((plan, *parts, *where)).encode()).hexdigest()[:16]


def states(preset: Preset, plan: Plan) -> Mapping[str, OwnSubject]:
    """Train in BF16 for the plan's steps, once for a folder. Return the model at INITIAL, BEFORE and LAST.

    Its router chooses, because a fixed choice depends on a token's place in the batch.
    """
    config, schedule = preset.model, preset.schedule
    config = replace(config, experts=config.experts and replace(config.experts, routing=Routing.FREE))
    if not 2 <= plan.steps <= schedule.steps:
        raise ValueError(f"--steps {plan.steps}: the schedule of {config.name} has 2 to {schedule.steps}")

    def train() -> dict[str, Tensor]:
        converted = control(models.build(config, plan.seed, device=plan.device))
        optimizer, kept = MasterWeightOptimizer(converted, schedule), dict[str, Tensor]()
        for step in range(plan.steps + 1):
            state = {0: INITIAL, plan.steps - 1: BEFORE, plan.steps: LAST}.get(step)
            if state:
                weights = converted.model.named_parameters()
                kept |= {f"{state}/{name}": p.detach().to("cpu", copy=True) for name, p in weights}
            if state != LAST:
                optimizer.set_lr(schedule.lr_at(step))
                data = microbatches(corpus.load(DEFAULT_CORPUS), schedule, plan.seed, step, plan.device)
                update(converted, optimizer, schedule, data)
        return kept

    found = made_once(plan.folder, f"weights-{key(plan, config, schedule)}", train)
    parts = {
        s: {n.partition("/")[2]: w for n, w in found.items() if n.startswith(f"{s}/")} for s in (INITIAL, BEFORE, LAST)
    }
    return {state: OwnSubject(config, weights, plan.device) for state, weights in parts.items()}


def sequences(subject: Subject, plan: Plan) -> Tensor:
    """Return sequences [B, length] that the checkpoint writes in BF16, once for a folder.

    A model of this project begins with held-out text, a folder's model with its first token alone.
    """

    def make() -> dict[str, Tensor]:
        plain = subject.build(RECIPES[CONTROL_RECIPE], Execution.NATIVE)
        if isinstance(subject, FolderSubject):
            prompts = torch.full((plan.sequences, 1), plain.model.config.bos_token_id or 0)  # type: ignore[union-attr,arg-type]
        else:
            prompts = corpus.load(DEFAULT_CORPUS).held_out(plan.sequences, plan.prompt)[0]
        return {"ids": sampled(subject, plain, prompts.to(plan.device), plan.length, plan.seed).cpu()}

    ids = made_once(plan.folder, f"sequences-{key(plan, subject.identity)}", make)["ids"]
    return ids.to(plan.device)


def as_scores(ids: Tensor, plan: Plan, found: Tensor) -> Scores:
    """Return what was computed [2, B, n] as scores of the tokens after the prompt."""
    logprobs, top = found.numpy()
    return Scores(list(ids[:, plan.prompt :].cpu().numpy()), list(logprobs), list(top))


def measure(
    subject: Subject, plan: Plan, recipes: Chosen, begin: Callable[[str], None]
) -> Mapping[str, Mapping[str, Scores]]:
    """Return scores by recipe and way. What the folder has is not computed again."""
    ids, found = sequences(subject, plan), dict[str, Mapping[str, Scores]]()
    for recipe, execution in recipes.runs.values():
        begin(f"{recipe.name} {execution}")

        def make(recipe: Recipe = recipe, execution: Execution = execution) -> dict[str, Tensor]:
            converted = calibrated(subject.build(recipe, execution), ids)
            ways = {TRAINER: trainer_scores(converted, ids, plan.prompt)}
            return ways | {n: engine_scores(subject, converted, ids, plan.prompt, e) for n, e in VARIANTS.items()}

        try:
            kept = made_once(plan.folder, f"scores-{key(plan, subject.identity, recipe, execution)}", make)
        finally:
            reset_state()
        found[recipe.name] = {way: as_scores(ids, plan, kept[way]) for way in (TRAINER, *VARIANTS)}
    return found
