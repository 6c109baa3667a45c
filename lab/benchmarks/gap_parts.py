"""Mean losses of long runs over parts of each phase of the learning rate, from records or a .csv file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory
from fp8parity.workload.optimizers import ADAMW
from gap_tables import sound

RANGES = 8
"""The parts of a phase, each as much longer than the one before."""
FIRST = 300
"""The first step of a fit: before it the loss falls too fast."""


class Phase(NamedTuple):
    """The steps from ``start`` to ``end`` of one phase of the learning rate."""

    name: str
    start: int
    end: int


def phases(schedule: Mapping[str, float]) -> list[Phase]:
    """Return the phases of a schedule after its warm-up that have steps."""
    warm, steps = int(schedule["warmup"]), int(schedule["steps"])
    stable, after = warm + int(schedule.get("stable", 0)), steps - int(schedule.get("after", 0))
    found = Phase("constant", warm, stable), Phase("decay", stable, after), Phase("after the decay", after, steps)
    return [p for p in found if p.end > p.start]


class Part(NamedTuple):
    """The mean loss (nats) of a run from step ``low`` to step ``high`` of a phase. ``tokens`` are those of a step."""

    model: str
    parameters: int
    corpus: str
    steps: int
    tokens: int
    floor: float
    label: str
    variant: str
    seed: int
    phase: str
    low: int
    high: int
    loss: float


def parts(run: Trajectory) -> Iterator[Part]:
    """Yield the parts of a run, none of one with a planted fault.

    Raises ``ValueError`` if the corpus has no known floor.
    """
    if not sound(run):
        return
    if run.floor is None:
        raise ValueError(f"{run.cell.id}: the entropy of {run.cell.corpus} is not known, so the gap has no share")
    tokens = int(run.schedule["rows"] * run.schedule["length"] * run.schedule["accumulation"])
    label = run.cell.label + ("" if run.optimizer == ADAMW else f", {run.optimizer}")
    for phase in phases(run.schedule):
        if phase.end <= FIRST:
            continue
        edges = np.unique(np.geomspace(max(phase.start, FIRST), phase.end, RANGES + 1).astype(int))
        for low, high in pairwise(edges.tolist()):
            loss = float(np.mean(run.loss[low:high]))
            shape = (run.cell.model, run.parameters, run.cell.corpus, run.steps, tokens, run.floor)
            yield Part(*shape, label, run.variant, run.seed, phase.name, low, high, loss)


def read(paths: Iterable[Path]) -> list[Part]:
    """Read record sets, or parts that were kept."""
    found: list[Part] = []
    for path in paths:
        if path.suffix != ".csv":
            runs = [r for m in sets.machines(sets.load([path])) for r in m.records if isinstance(r, Trajectory)]
            found += [part for run in runs for part in parts(run)]
            continue
        kinds = (str, int, str, int, int, float, str, str, int, str, int, int, float)
        with path.open(newline="") as file:
            found += [Part(*(k(v) for k, v in zip(kinds, row, strict=True))) for row in list(csv.reader(file))[1:]]
    return found


def keep(found: Iterable[Part], path: Path) -> None:
    with path.open("w", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(Part._fields)
        out.writerows(p._replace(loss=round(p.loss, 9)) for p in found)
