"""Gates simulated from measured noise: whole curves of recorded gaps, drawn again. No torch.

A simulated session draws one recorded seed for each of its seeds. All recipes of one sample take the same draw, because recipes of a seed
move together. A run is golden x (1 + gap of BF16) x (1 + mean gap of the recipe + residual of the drawn seed). The residuals are scaled by
sqrt(n / (n - 1)), because their mean was estimated. ``MIXED`` takes a combination of two residuals with random weights (squares
sum to 1), so that a simulated curve is not one of those that the bands were made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import many
import numpy as np
import trials
from fp8parity.judging import stats
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import Golden, GoldenSeed, Replica
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Trajectory
from many import Curves, Reference, Yardstick

WHOLE, MIXED = "whole curves", "mixtures of two"
SEED = 20261122
CHUNK = 100
"""The number of gates that are in memory at once."""
LEAST_SAMPLE = 3


class Sample(NamedTuple):
    """Recipes that were recorded with the same seeds. ``gaps`` [recipes, seeds, ...] are relative to BF16 of the same session."""

    cells: list[Cell]
    gaps: Curves


@dataclass(frozen=True)
class Noise:
    """The measured noise of a model. ``bf16`` [runs, ...] holds gaps of BF16 to its golden, at least one row. It is zero if nobody has
    measured any."""

    model: trials.Model
    device: str
    bf16: Curves
    samples: list[Sample]

    @property
    def cells(self) -> list[Cell]:
        return [cell for sample in self.samples for cell in sample.cells]

    @property
    def seeds(self) -> str:
        """How many recorded runs stand behind a recipe: "3 to 35"."""
        counts = sorted({sample.gaps.loss.shape[1] for sample in self.samples})
        return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def noise(model: trials.Model) -> Noise | None:
    """The noise of a model, or None if no recipe has ``LEAST_SAMPLE`` seeds. Each recipe counts once, where it has most seeds."""
    found: dict[Cell, dict[tuple[str, int], spreads.Pair]] = {}
    for run, control in model.pairs:
        found.setdefault(run.cell, {})[run.provenance.device + run.session, run.seed] = (run, control)
    best: dict[str, Cell] = {}
    for cell in sorted(found, key=lambda c: (-len(found[c]), c.id)):
        best.setdefault(cell.recipe, cell)
    groups: dict[tuple[tuple[str, int], ...], list[Cell]] = {}
    for cell in best.values():
        if len({seed for _, seed in found[cell]}) >= LEAST_SAMPLE:
            groups.setdefault(tuple(sorted(found[cell])), []).append(cell)
    if not groups:
        return None
    samples = [
        Sample(cells, stacked([stacked([gap(*found[cell][key]) for key in keys]) for cell in cells]))
        for keys, cells in groups.items()
    ]
    return Noise(model, model.sessions[0].environment.device, _bf16(model.golden), samples)


def held_out(model: trials.Model) -> Noise | None:
    """The noise of every second seed, with bands that rest on the other seeds. None if a recipe has too few seeds for that."""
    seeds = sorted({run.seed for run, _ in model.pairs})
    known = [p for p in model.pairs if seeds.index(p[0].seed) % 2 == 0]
    drawn = [p for p in model.pairs if seeds.index(p[0].seed) % 2]
    golden = model.golden.model_copy(update={"spreads": []})
    return noise(replace(model, golden=trials.with_spreads(golden, known, model.rules), pairs=drawn))


def gap(run: Trajectory, control: Trajectory) -> Curves:
    """The relative gaps of one run: loss and norm [steps], last validation []."""
    loss, norm = (np.asarray(getattr(run, k)) / np.asarray(getattr(control, k)) - 1 for k in ("loss", "grad_norm"))
    return Curves(loss, norm, np.asarray(run.validation[-1][1] / control.validation[-1][1] - 1))


def stacked(found: Sequence[Curves]) -> Curves:
    return Curves(*(np.stack(x) for x in zip(*found, strict=True)))


def _bf16(golden: Golden) -> Curves:
    """Gaps of a golden's runs and replicas to their mean, scaled to those of a new run: with m runs a mean, by sqrt((m + 1) / (m - 1))."""
    rows = []
    for seed in (s for s in golden.seeds if s.replicas):
        runs: list[GoldenSeed | Replica] = [seed, *seed.replicas]
        scale = np.sqrt((len(runs) + 1) / (len(runs) - 1))
        for r in runs:
            loss, norm = np.asarray(r.loss) / seed.mean_loss - 1, np.asarray(r.grad_norm) / seed.mean_norm - 1
            rows.append(
                Curves(scale * loss, scale * norm, np.asarray(scale * (r.validation[-1][1] / seed.mean_validation - 1)))
            )
    steps = len(golden.seeds[0].loss)
    return stacked(rows or [Curves(np.zeros(steps), np.zeros(steps), np.asarray(0.0))])


class Drawn(NamedTuple):
    """Simulated sessions: the golden, BF16 and each recipe, [sessions, seeds, ...]."""

    reference: Reference
    controls: Curves
    runs: dict[Cell, Curves]


def draw(known: Noise, count: int, seeds: int, how: str, rng: np.random.Generator) -> Drawn:
    """Draw ``count`` sessions of ``seeds`` seeds."""
    reference = Reference.of(known.model.golden, seeds)
    shape = (count, seeds)
    controls = reference.mean.moved(_residuals(known.bf16, shape, WHOLE, rng, centerd=True))
    runs = {}
    for sample in known.samples:
        state = rng.bit_generator.state
        for i, cell in enumerate(sample.cells):
            rng.bit_generator.state = state  # all recipes of a sample take the same draw
            gaps = Curves(*(x[i] for x in sample.gaps))
            mean = Curves(*(x.mean(0) for x in gaps))
            residual = _residuals(gaps, shape, how, rng)
            runs[cell] = controls.moved(Curves(*(m + r for m, r in zip(mean, residual, strict=True))))
    return Drawn(reference, controls, runs)


def _residuals(
    gaps: Curves, shape: tuple[int, int], how: str, rng: np.random.Generator, *, centerd: bool = False
) -> Curves:
    """Draw residuals of ``gaps`` [sample, ...]: [sessions, seeds, ...]. ``centerd`` gaps are residuals already."""
    n = len(gaps.loss)
    first, second = rng.integers(n, size=(2, *shape))
    angle = rng.uniform(0, 2 * np.pi, size=shape)
    own = gaps if centerd else Curves(*(np.sqrt(n / (n - 1)) * (x - x.mean(0)) for x in gaps))

    def drawn(x: stats.Floats) -> stats.Floats:
        if how == WHOLE:
            return x[first]
        a = angle.reshape(angle.shape + (1,) * (x.ndim - 1))
        return np.asarray(np.cos(a) * x[first] + np.sin(a) * x[second])

    return Curves(*map(drawn, own))


def stick(known: Noise, cell: Cell, stored: Goldens) -> Yardstick:
    """The limits of a simulated cell."""
    return Yardstick.of(cell, known.model.golden, known.model.rules, stored.numbers, known.device)


class Gates(NamedTuple):
    """Simulated gates of one model: ``red`` [gates], and how many gates each cause turned red. A gate may have several causes."""

    red: many.Marks
    cells: int
    causes: dict[str, int]


def gates(known: Noise, stored: Goldens, count: int, how: str) -> Gates:
    """Judge ``count`` simulated gates of BF16 and all recipes. Sound runs alone: what is red is a false alarm."""
    rng = np.random.default_rng([SEED, len(known.model.title), how == MIXED])
    control = known.cells[0].control
    sticks = {cell: stick(known, cell, stored) for cell in (control, *known.cells)}
    seeds = sticks[control].row.seeds[-1]
    red, causes = [], dict[str, int]()
    for start in range(0, count, CHUNK):
        session = draw(known, min(CHUNK, count - start), seeds, how, rng)
        found = {
            c: many.judge(runs, session.controls, session.reference, sticks[c]) for c, runs in session.runs.items()
        }
        found[control] = many.judge(session.controls, session.controls, session.reference, sticks[control])
        red.append(np.logical_or.reduce([v.red for v in found.values()]))
        for name, marks in _causes(found).items():
            causes[name] = causes.get(name, 0) + int(marks.sum())
    return Gates(np.concatenate(red), len(sticks), {k: v for k, v in causes.items() if v})


def _causes(found: dict[Cell, many.Verdicts]) -> dict[str, many.Marks]:
    """Which gates each check turned red: by the kind of cell, and the check."""
    marks: dict[str, many.Marks] = {}
    for cell, v in found.items():
        kind = "BF16" if cell.is_control else cell.recipe
        named = {**{k: m & v.red for k, m in v.causes.items()}, "undecided": v.status == "inconclusive"}
        for name, mark in named.items():
            marks[f"{kind}: {name}"] = marks.get(f"{kind}: {name}", np.zeros_like(mark)) | mark
    return marks
