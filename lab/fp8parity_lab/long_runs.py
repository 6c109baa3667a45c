"""Long schedules on text that never comes twice, and runs that go on to the bit after a kill.

A run goes on before its first step, so a CUDA graph is captured after the state was restored.
"""

from __future__ import annotations

import io
import math
import pickle
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from fp8parity.recipes import ConvertedModel
from fp8parity.records import files
from fp8parity.records.cell import Cell
from fp8parity.records.provenance import Provenance
from fp8parity.records.schema import Probed, Trajectory, run_name
from fp8parity.records.storage import file_name
from fp8parity.runner import Runner
from fp8parity.training import checkpoint, provenance
from fp8parity.training.loop import History
from fp8parity.training.optimizer import MasterWeightOptimizer
from fp8parity.training.probe import PeakMemory, Probe
from fp8parity.training.variants import Variant
from fp8parity.workload import corpus, topics
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.corpus import TokenStream
from fp8parity.workload.presets import Preset, presets
from fp8parity.workload.schedule import Schedule
from torch import Tensor, nn

FRESH = "topics:fresh"
"""The language ``topics`` without an end: no text comes twice, and each seed has its own."""
PARAGRAPH = (1 + topics.SEGMENT) * topics.SEGMENTS
"""The bytes of a paragraph of ``topics``."""
BLOCK = 500 * PARAGRAPH
"""Bytes of a fresh text that are made together."""


@dataclass(frozen=True, eq=False)
class FreshStream(TokenStream):
    """The language ``topics`` without an end. A text that comes again is learned by heart.

    ``train`` holds the text of ``topics``, for its statistics alone.
    """

    def batch(self, seed: int, step: int, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), int64 [rows, length], of the seed's text.

        The windows follow each other.
        """
        start = torch.arange(step * rows, (step + 1) * rows) * length
        first, last = (int(at) // BLOCK for at in (start[0], start[-1] + length))
        text = torch.cat([_fresh(seed, block) for block in range(first, last + 1)])
        return corpus.windows(text, start - first * BLOCK, length)


@lru_cache(maxsize=4)
def _fresh(seed: int, block: int) -> Tensor:
    return torch.from_numpy(topics.tokens(BLOCK, f"fresh {seed}", block * BLOCK // PARAGRAPH))


@cache
def fresh() -> FreshStream:
    """Return the corpus ``topics:fresh``."""
    plain = corpus.load("topics")
    return corpus.of_batches(FreshStream(FRESH, plain.train, plain.validation, "", plain.floor), plain)


class LongConfig(ModelConfig):
    """A model of the core that also reads ``topics:fresh``."""

    def data(self, corpus_name: str) -> TokenStream:
        """Return the token stream of a corpus. Raises ``ValueError`` for an unknown one."""
        return fresh() if corpus_name == FRESH else super().data(corpus_name)


@dataclass(frozen=True)
class PhasedSchedule(Schedule):
    """A schedule with a constant rate before the decay and after it.

    The peak rate stays for ``stable`` steps, and its share ``least`` for the last ``after`` steps. Raises
    ``ValueError`` for phases that leave no step to the decay.
    """

    stable: int = 0
    after: int = 0
    least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.stable or self.after) and self.decay < 1:
            raise ValueError(
                f"{self.steps} steps with {self.warmup} of warm-up, {self.stable} stable and "
                f"{self.after} after the decay leave none to the decay"
            )

    @property
    def terms(self) -> dict[str, int | float | str]:
        """Return the fields by name, without phases that have their default: hashes are those of the core."""
        default = {"stable": 0, "after": 0, "least": 0.0}
        return {n: value for n, value in super().terms.items() if n not in default or value != default[n]}

    @property
    def decay(self) -> int:
        """The number of steps of the decay."""
        return self.steps - self.warmup - self.stable - self.after

    def lr_at(self, step: int) -> float:
        """Return the learning rate of a step in 0 .. steps - 1."""
        if step < self.warmup:
            return super().lr_at(step)
        at = max(0, min(step, self.steps - self.after) - self.warmup - self.stable)
        return self.lr * (self.least + (1 - self.least) * 0.5 * (1 + math.cos(math.pi * at / self.decay)))


SCHEDULES = {
    "tiny-long": Schedule(20_000, rows=32, length=128, lr=1e-3, warmup=200, tail=4_000, validation_every=1_000),
    "mini-long": Schedule(10_000, rows=32, length=128, lr=4e-4, warmup=100, tail=2_000, validation_every=500),
}
"""82 and 41 million tokens, the last fifth judged."""


def phased(preset: Preset) -> Preset:
    """Return a preset whose schedule may have phases (``changed`` of ``fp8parity schedule`` sets them)."""
    return replace(preset, schedule=PhasedSchedule(**vars(preset.schedule)))


def long_presets() -> dict[str, Preset]:
    """Return the long presets by name: the sizes ``tiny`` and ``mini`` on ``topics:fresh``.

    ``pytest_fp8parity_models`` takes them, too (docs/long-runs.md).
    """
    plain = {name: vars(presets()[name.removesuffix("-long")].model) for name in SCHEDULES}
    return {name: Preset(LongConfig(**plain[name] | {"name": name}), s, FRESH) for name, s in SCHEDULES.items()}


EVERY_SECONDS = 30.0
"""The time between two checkpoints of a run. One of ``tiny`` has 16 MB."""
ENDING = ".checkpoint"
"""The ending of a checkpoint, next to the record that the run will write."""
DAMAGED = (RuntimeError, pickle.UnpicklingError, EOFError, OSError, KeyError)
"""What ``torch.load`` raises for a file that is not whole."""
State = dict[str, Any]


def trajectory(runner: Runner, cell: Cell, seed: int, variant: Variant | None = None) -> Trajectory:
    """Return the trajectory of a cell and seed. A killed run goes on if the runner resumes."""
    record = runner.settings.records / file_name(cell, run_name(seed, variant.name if variant else ""))
    path = record.with_suffix(ENDING)
    saving = partial(saver, path, runner.settings.resume)
    made = replace(runner, settings=replace(runner.settings, saving=saving)).trajectory(cell, seed, variant)
    path.unlink(missing_ok=True)
    return made


def saver(
    path: Path,
    resume: bool,
    run: Mapping[str, str],
    converted: ConvertedModel,
    optimizer: MasterWeightOptimizer,
    probe: Probe | None,
    peak: PeakMemory,
) -> Saver | None:
    """Return what saves a run (``loop.Saving``); None, with a warning, if its state cannot be kept."""
    odd = [n for n, p in converted.model.named_parameters() if type(p) not in (Tensor, nn.Parameter)]
    if odd:
        why = f"{odd[0]} is kept in FP8 only, and a checkpoint holds plain tensors"
        warnings.warn(f"a killed run of {run['cell']} begins again: {why}", stacklevel=2)
        return None
    source = provenance.collect(peak.device, "-")
    return Saver(Checkpoint(path, resume, run, source), converted, optimizer, probe, peak)


@dataclass
class Checkpoint:
    """The file of an unfinished run.

    ``resume``: go on from the file if it exists. ``run`` says which run it is, by name, and ``source`` from where.
    """

    path: Path
    resume: bool
    run: Mapping[str, str]
    source: Provenance
    saved: float = field(default_factory=time.monotonic)

    def save(self, state: State) -> None:
        """Write the file. A kill meanwhile leaves the earlier one."""
        content = io.BytesIO()
        torch.save({**state, "run": dict(self.run), "source": self.source.model_dump_json()}, content)
        files.write(self.path, content.getvalue())
        self.saved = time.monotonic()

    def load(self, device: torch.device) -> State | None:
        """Return the state to go on from, or None without one.

        Raises ``ValueError`` if the file is damaged, or of another run or build: nothing is trained again in silence.
        """
        if not (self.resume and self.path.exists()):
            return None
        try:
            state: State = torch.load(self.path, map_location=device, weights_only=True)
            why = self._unlike(state["run"], Provenance.model_validate_json(state["source"]))
        except DAMAGED as error:
            why = f"it is damaged ({str(error).partition(chr(10))[0][:80]})"
        if why:
            raise ValueError(
                f"{self.path}: the run cannot go on from it: {why}; remove it to train from the first step"
            )
        return state

    def _unlike(self, run: Mapping[str, str], source: Provenance) -> str | None:
        if other := [n for n in self.run if run.get(n) != self.run[n]]:
            return f"its {other[0]} is {run.get(other[0])}, and this run's is {self.run[other[0]]}"
        return source.unlike(self.source)


@dataclass
class Saver:
    """Writes all that a run needs to go on into its checkpoint, and reads it."""

    kept: Checkpoint
    converted: ConvertedModel
    optimizer: MasterWeightOptimizer
    probe: Probe | None
    peak: PeakMemory
    began: float = field(default_factory=time.perf_counter)

    @property
    def due(self) -> bool:
        """Whether the last save is EVERY_SECONDS ago."""
        return time.monotonic() - self.kept.saved >= EVERY_SECONDS

    def save(self, history: History) -> None:
        """Write the checkpoint."""
        spent = history.spent + time.perf_counter() - self.began
        state = checkpoint.state_of(self.converted, self.optimizer)
        state["history"] = {n: v for n, v in vars(history).items() if n != "non_finite"} | {"spent": spent}
        state["peak"] = self.peak.read()
        if self.probe:
            found = [p.model_dump() for p in self.probe.found]
            state["probe"] = {"found": found, "missing": self.probe.missing, "seconds": self.probe.seconds}
        self.kept.save(state)

    def load(self) -> History:
        """Restore the state of the checkpoint, if there is one, and return its history."""
        state = self.kept.load(self.peak.device)
        if state is None:
            return History()
        checkpoint.restore(self.converted, self.optimizer, state)
        self.peak.before = state["peak"]
        if self.probe:
            vars(self.probe).update(state["probe"], found=[Probed(**p) for p in state["probe"]["found"]])
        return History(**state["history"])
