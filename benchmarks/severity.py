"""Detection by severity: how small a planted gap may be, and how late it may begin, in simulated sessions. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import many
import numpy as np
import numpy.typing as npt
import simulated
import trials
from fp8parity.judging import stats
from fp8parity.judging.references import Goldens
from fp8parity.records.cell import Cell
from many import Curves, Yardstick

FOUND = 0.95
"""The share of draws in which a fault of a severity must be red."""
STEPS_OF_SEARCH = 12


@dataclass(frozen=True)
class Fault:
    """The mean relative gaps of a planted fault to BF16, over ``n`` seeds: loss and norm [steps], last validation []."""

    name: str
    n: int
    gap: Curves

    def scaled(self, by: float) -> Curves:
        return Curves(*(by * x for x in self.gap))

    def since(self, step: int) -> Curves:
        """The same fault from a step on. The gap is zero before, and the last validation stays that of sound runs."""
        on = np.arange(len(self.gap.loss)) >= step
        return Curves(self.gap.loss * on, self.gap.norm * on, np.asarray(0.0))


CONSTANT = "a constant gap"


def faults(model: trials.Model) -> list[Fault]:
    """A constant gap of 1, then the planted faults of a model."""
    steps = len(model.golden.seeds[0].loss)
    found = [Fault(CONSTANT, 0, Curves(np.ones(steps), np.zeros(steps), np.asarray(1.0)))]
    for session, name, runs in model.planted:
        gaps = [simulated.gap(r, control) for r in runs if (control := session.control(r))]
        if name in model.faults and gaps:
            found.append(Fault(name, len(gaps), Curves(*(x.mean(0) for x in simulated.stacked(gaps)))))
    return found


@dataclass(frozen=True)
class Detector:
    """Simulated sessions in which a gap is planted, in one recipe or in BF16 (``place``)."""

    session: simulated.Drawn
    cell: Cell
    limits: Yardstick

    def judged(self, gap: Curves) -> many.Verdicts:
        """The verdicts of all sessions with the planted gap."""
        moved = self.session.controls if not self.cell.is_control else self.session.controls.moved(gap)
        runs = moved if self.cell.is_control else self.session.runs[self.cell].moved(gap)
        return many.judge(runs, moved, self.session.reference, self.limits)

    def share(self, gap: Curves) -> float:
        """The share of sessions in which the planted gap is red."""
        return float(self.judged(gap).red.mean())


def detector(known: simulated.Noise, stored: Goldens, count: int, *, in_bf16: bool) -> Detector | None:
    """Sessions for dose-response: of BF16, or of te-current. If sound runs of te-current are red too often, of the first recipe that is
    not. None if there is none."""
    carriers = sorted(known.cells, key=lambda c: (c.recipe != trials.CARRIER, c.id))
    control = carriers[0].control
    seeds = simulated.stick(known, control, stored).row.seeds[-1]
    session = simulated.draw(known, count, seeds, simulated.MIXED, np.random.default_rng([simulated.SEED, 1]))
    made = (
        Detector(session, cell, simulated.stick(known, cell, stored)) for cell in ([control] if in_bf16 else carriers)
    )
    zero = Curves(*(np.zeros(()) for _ in range(3)))
    return next((d for d in made if d.share(zero) < 1 - FOUND), None)


def smallest(share: Callable[[float], float], low: float, high: float) -> float | None:
    """The smallest factor in [low, high] that is found in ``FOUND`` of the draws, or None."""
    if share(high) < FOUND:
        return None
    for _ in range(STEPS_OF_SEARCH):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if share(middle) >= FOUND else (middle, high)
    return high


def latest(share: Callable[[int], float], steps: Sequence[int]) -> int | None:
    """The last of ``steps`` that is found in ``FOUND`` of the draws, or None."""
    return next((step for step in reversed(steps) if share(step) >= FOUND), None)


def windows(gap: npt.NDArray[np.float64]) -> stats.Floats:
    """The mean of a curve in each window of ``stats.WINDOW`` steps."""
    return stats.windows(gap.tolist(), stats.WINDOW)
