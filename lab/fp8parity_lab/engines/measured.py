"""Compute each recipe once as trainer and once by engine, and compare all pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from fp8parity.checks.gradients import made_once
from fp8parity.recipes import Recipe
from fp8parity.recipes.registry import RECIPES, matching, skip_reason
from fp8parity.records.cell import CONTROL_RECIPE, Execution
from fp8parity.training.hardware import reset_state
from fp8parity.workload.presets import Preset
from torch import Tensor

from fp8parity_lab.engines import checkpoint
from fp8parity_lab.engines.checkpoint import Plan, as_scores, key
from fp8parity_lab.engines.models import (
    ENGINE,
    VARIANTS,
    FolderSubject,
    OwnSubject,
    Subject,
    calibrated,
    engine_scores,
    trainer_scores,
)
from fp8parity_lab.engines.scores import Numbers, Scores, difference, numbers
from fp8parity_lab.executions import first_runnable

TRAINER = "trainer"


@dataclass(frozen=True)
class Chosen:
    """The recipes that run here with their executions, BF16 first, and why others do not."""

    runs: Mapping[str, tuple[Recipe, Execution]]
    not_run: Mapping[str, str]


@dataclass(frozen=True)
class Found:
    """Log-probabilities by recipe and by TRAINER or a name of ``VARIANTS``."""

    scores: Mapping[str, Mapping[str, Scores]]

    def pairs(self) -> dict[tuple[str, str], Numbers]:
        """Return the numbers of each (trainer's recipe, engine's recipe)."""
        return {(a, b): self.pair(a, b, ENGINE) for a in self.scores for b in self.scores}

    def variants(self) -> dict[tuple[str, str], Numbers]:
        """Return the numbers of each recipe with itself by variant of the engine."""
        return {(recipe, name): self.pair(recipe, recipe, name) for recipe in self.scores for name in VARIANTS}

    def pair(self, trainer: str, engine: str, variant: str) -> Numbers:
        return numbers(difference(self.scores[trainer][TRAINER], self.scores[engine][variant]))


def chosen(patterns: Sequence[str], execution: Execution | None, capability: tuple[int, int] | None) -> Chosen:
    """Choose the recipes of patterns, by default all of the catalogue."""
    runs, not_run = {CONTROL_RECIPE: (RECIPES[CONTROL_RECIPE], Execution.NATIVE)}, {}
    for recipe in matching(patterns or ["*"]):
        if recipe.name == CONTROL_RECIPE:
            continue
        own = execution or first_runnable(recipe, capability) or Execution.EMULATED
        if why := skip_reason(recipe, own, capability):
            not_run[recipe.name] = why
        else:
            runs[recipe.name] = recipe, own
    return Chosen(runs, not_run)


def own_subject(preset: Preset, plan: Plan, device: torch.device, folder: Path) -> OwnSubject:
    """Return a model of this project at the end of the plan's steps."""
    config = checkpoint.free(preset.model)
    states = checkpoint.trained(config, preset.schedule, plan, device, folder)
    return OwnSubject(config, states[checkpoint.LAST], device)


def measure(
    subject: Subject, plan: Plan, recipes: Chosen, device: torch.device, folder: Path, begin: Callable[[str], None]
) -> Found:
    """Return the scores of all recipes. What is in the folder is not computed again."""
    name = key(subject.identity, plan, device.type)
    ids = checkpoint.sequences(subject, plan, device, folder, name)
    found = {}
    for recipe, execution in recipes.runs.values():
        begin(f"{recipe.name} {execution}")
        kept = made_once(
            folder,
            f"scores-{key(name, recipe, execution)}",
            lambda r=recipe, e=execution: _scores(subject, r, e, ids, plan),  # type: ignore[misc]  # mypy infers no defaults
        )
        found[recipe.name] = {
            way: as_scores(ids, plan.prompt, {n: kept[f"{way}/{n}"] for n in ("logprobs", "top")})
            for way in (TRAINER, *VARIANTS)
        }
    return Found(found)


def _scores(subject: Subject, recipe: Recipe, execution: Execution, ids: Tensor, plan: Plan) -> dict[str, Tensor]:
    try:
        converted = calibrated(subject, subject.build(recipe, execution), ids)
        ways = {TRAINER: trainer_scores(subject, converted, ids, plan.prompt)}
        ways |= {way: engine_scores(subject, converted, ids, plan.prompt, engine) for way, engine in VARIANTS.items()}
    finally:
        reset_state()
    return {f"{way}/{name}": tensor for way, found in ways.items() for name, tensor in found.items()}


def subject_of(hf: Path | None, preset: Preset, plan: Plan, device: torch.device, folder: Path) -> Subject:
    """Return the model of a Hugging Face folder, or else of a preset."""
    return FolderSubject(hf, device) if hf else own_subject(preset, plan, device, folder)
