"""Simulate gates from measured noise: whole curves of recorded gaps, drawn again, and judged as any gate is. No torch.

A simulated session draws one recorded seed for each of its seeds. All recipes of one sample take the same draw, because
recipes of a seed are correlated. A run is golden x (1 + gap of BF16) x (1 + mean gap of the recipe + residual of the
drawn seed). The residuals are scaled by sqrt(n / (n - 1)), because their mean was estimated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import trials
from fp8parity.judging import stats
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import Golden, GoldenSeed, Replica
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Trajectory

SEED = 20261122
MIN_SAMPLE = 3
"""A recipe with fewer recorded seeds is not simulated."""
FOUND = 0.95
"""The share of draws in which a gap must be red to count as found."""
STEPS_OF_SEARCH = 12


class Curves(NamedTuple):
    """Runs, or gaps of runs: ``loss`` and ``norm`` [..., steps], the last ``validation`` loss [...]."""

    loss: stats.Floats
    norm: stats.Floats
    validation: stats.Floats

    def shifted(self, by: Curves) -> Curves:
        """Return these runs with the relative gaps ``by`` in addition."""
        return Curves(*(x * (1 + gap) for x, gap in zip(self, by, strict=True)))


class Sample(NamedTuple):
    """Recipes that were recorded with the same seeds. ``gaps`` [recipes, seeds, ...] are relative to BF16."""

    cells: list[Cell]
    gaps: Curves


@dataclass(frozen=True)
class Noise:
    """The measured noise of a model.

    Gaps of BF16 to its golden [runs, ...], samples, and a recorded run of each cell.
    """

    model: trials.Model
    bf16: Curves
    samples: list[Sample]
    recorded: dict[Cell, Trajectory]

    @property
    def cells(self) -> list[Cell]:
        return [cell for sample in self.samples for cell in sample.cells]

    @property
    def control(self) -> Cell:
        return self.cells[0].control

    @property
    def seeds(self) -> str:
        """Return how many recorded runs there are of a recipe: "3 to 35"."""
        counts = sorted({sample.gaps.loss.shape[1] for sample in self.samples})
        return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])


def noise(model: trials.Model) -> Noise | None:
    """Return the noise of a model, or None if no recipe has ``MIN_SAMPLE`` seeds. Each recipe counts once."""
    found: dict[Cell, dict[tuple[str, int], spreads.Pair]] = {}
    for run, control in model.pairs:
        found.setdefault(run.cell, {})[run.provenance.device + run.session, run.seed] = (run, control)
    best: dict[str, Cell] = {}
    for cell in sorted(found, key=lambda c: (-len(found[c]), c.id)):
        best.setdefault(cell.recipe, cell)
    groups: dict[tuple[tuple[str, int], ...], list[Cell]] = {}
    for cell in best.values():
        if len({seed for _, seed in found[cell]}) >= MIN_SAMPLE:
            groups.setdefault(tuple(sorted(found[cell])), []).append(cell)
    if not groups:
        return None
    samples = [
        Sample(cells, _stacked([_stacked([_gap(*found[cell][key]) for key in keys]) for cell in cells]))
        for keys, cells in groups.items()
    ]
    recorded = {r.cell: r for pair in model.pairs for r in pair}
    model = replace(model, golden=_without_first_steps(model.golden))
    return Noise(model, _bf16(model.golden), samples, recorded)


def _without_first_steps(golden: Golden) -> Golden:
    """Return the golden without first steps: a simulated run has those of another seed."""
    empty: dict[str, list[float]] = {"first_losses": [], "first_gradients": []}
    runs = [[r.model_copy(update=empty) for r in n.runs] for n in golden.noise]
    noise = [n.model_copy(update={"runs": r}) for n, r in zip(golden.noise, runs, strict=True)]
    return golden.model_copy(update={"noise": noise})


def held_out(model: trials.Model) -> Noise | None:
    """Return the noise of every second seed, with bands that rest on the other seeds, or None if there are too few."""
    seeds = sorted({run.seed for run, _ in model.pairs})
    known = [p for p in model.pairs if seeds.index(p[0].seed) % 2 == 0]
    drawn = [p for p in model.pairs if seeds.index(p[0].seed) % 2]
    golden = model.golden.model_copy(update={"noise": []})
    return noise(replace(model, golden=trials.with_spreads(golden, known, model.rules), pairs=drawn))


def _gap(run: Trajectory, control: Trajectory) -> Curves:
    """Return the relative gaps of one run: loss and norm [steps], last validation []."""
    loss, norm = (np.asarray(getattr(run, k)) / np.asarray(getattr(control, k)) - 1 for k in ("loss", "grad_norm"))
    return Curves(loss, norm, np.asarray(run.validation[-1][1] / control.validation[-1][1] - 1))


def _stacked(found: Sequence[Curves]) -> Curves:
    return Curves(*(np.stack(x) for x in zip(*found, strict=True)))


def _bf16(golden: Golden) -> Curves:
    """Return gaps of a golden's runs to their mean, scaled to those of a new run.

    The scale is sqrt((m + 1) / (m - 1)) of m runs.
    """
    rows = []
    for seed in (s for s in golden.seeds if s.replicas):
        runs: list[GoldenSeed | Replica] = [seed, *seed.replicas]
        scale = np.sqrt((len(runs) + 1) / (len(runs) - 1))
        for r in runs:
            loss, norm = np.asarray(r.loss) / seed.mean_loss - 1, np.asarray(r.grad_norm) / seed.mean_norm - 1
            last = np.asarray(r.validation[-1][1] / seed.mean_validation[-1] - 1)
            rows.append(Curves(scale * loss, scale * norm, scale * last))
    steps = len(golden.seeds[0].loss)
    return _stacked(rows or [Curves(np.zeros(steps), np.zeros(steps), np.asarray(0.0))])


def draw(known: Noise, rng: np.random.Generator) -> dict[Cell, Curves]:
    """Draw one session: the runs of BF16 and of each recipe, [seeds, ...]."""
    seeds = known.model.golden.seeds
    mean = Curves(
        np.array([s.mean_loss for s in seeds]),
        np.array([s.mean_norm for s in seeds]),
        np.array([s.mean_validation[-1] for s in seeds]),
    )
    drawn = rng.integers(len(known.bf16.loss), size=len(seeds))
    session = {known.control: mean.shifted(Curves(*(x[drawn] for x in known.bf16)))}
    for sample in known.samples:
        n = sample.gaps.loss.shape[1]
        drawn = rng.integers(n, size=len(seeds))
        for i, cell in enumerate(sample.cells):
            centers = [x[i].mean(0) for x in sample.gaps]
            scaled = (np.sqrt(n / (n - 1)) * (x[i][drawn] - c) + c for x, c in zip(sample.gaps, centers, strict=True))
            session[cell] = session[known.control].shifted(Curves(*scaled))
    return session


def verdict(known: Noise, cell: Cell, session: dict[Cell, Curves], stored: Goldens) -> str:
    """Judge one cell of a session. Return its status."""
    controls = _records(known, known.control, session[known.control])
    runs = controls if cell.is_control else _records(known, cell, session[cell])
    trial = trials.Trial(trials.SOUND, cell.id, runs, (), () if cell.is_control else controls, known.model.golden)
    return trials.verdict(trial, stored, known.model.rules).status


def _records(known: Noise, cell: Cell, curves: Curves) -> tuple[Trajectory, ...]:
    """Return drawn curves as records, like the recorded run of the cell but for what a simulation does not have."""
    made = []
    for i, own in enumerate(known.model.golden.seeds):
        last = known.recorded[cell].validation[-1][0]
        changes = {
            "loss": curves.loss[i].tolist(),
            "grad_norm": curves.norm[i].tolist(),
            "validation": [(last, float(curves.validation[i]))],
            "seed": own.seed,
            "initial_weights": own.initial_weights,
            "final_weights": "",
            "first_gradients": {},
            "probes": [],
            "session": "simulated",
            "partial": True,
            "provenance": known.recorded[known.control].provenance,
        }
        made.append(known.recorded[cell].model_copy(update=changes))
    return tuple(made)


class Gates(NamedTuple):
    """Simulated gates of one model: ``red`` [gates], and how many red verdicts there were, by recipe and status."""

    red: np.ndarray
    cells: int
    causes: Counter[str]


def gates(known: Noise, stored: Goldens, count: int) -> Gates:
    """Judge ``count`` simulated gates of BF16 and all recipes. All runs are sound: what is red is a false alarm."""
    rng = np.random.default_rng([SEED, len(known.model.title)])
    red, causes = [], Counter[str]()
    for _ in range(count):
        session = draw(known, rng)
        found = {cell: verdict(known, cell, session, stored) for cell in session}
        wrong = [f"{cell.recipe}: {status}" for cell, status in found.items() if status not in trials.GREEN]
        red.append(bool(wrong))
        causes.update(wrong)
    return Gates(np.array(red), len(known.cells) + 1, causes)


def share_found(known: Noise, cell: Cell, gap: float, stored: Goldens, draws: int) -> float:
    """Return the share of simulated sessions in which a constant gap in a cell is red."""
    rng = np.random.default_rng([SEED, 1])
    planted = Curves(np.asarray(gap), np.asarray(0.0), np.asarray(gap))
    red = 0
    for _ in range(draws):
        session = draw(known, rng)
        changed = {c: runs.shifted(planted) if c == cell else runs for c, runs in session.items()}
        red += verdict(known, cell, changed, stored) not in trials.GREEN
    return red / draws


def smallest_gap(known: Noise, cell: Cell, stored: Goldens, draws: int) -> float | None:
    """Return the smallest constant gap that is red in ``FOUND`` of the draws, or None if not even 10% is."""
    low, high = 1e-6, 0.1
    if share_found(known, cell, high, stored, draws) < FOUND:
        return None
    for _ in range(STEPS_OF_SEARCH):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if share_found(known, cell, middle, stored, draws) >= FOUND else (middle, high)
    return high
