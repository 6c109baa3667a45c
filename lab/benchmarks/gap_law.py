"""Fit how the gap of a recipe grows with the length of a run, and test the fit on a length that it has not seen.

    python lab/benchmarks/gap_law.py FOLDER ... --keep lab/docs/evidence/gap-law.csv   (runs of long_runs.py)
    python lab/benchmarks/gap_law.py lab/docs/evidence/gap-law.csv

The gap is a share of BF16's excess over the entropy of the corpus. The fit is share = a (tokens / 1e6)^b, of the
constant phase of the learning rate or, without one, of the decay. Its last range is held out. gap_page.py writes
the page of the second command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity.judging import stats
from fp8parity.judging.stats import Floats
from fp8parity.records.cell import CONTROL_RECIPE
from gap_parts import Part, keep, read
from gap_tables import ALPHA, ONE_ULP, markdown, pair
from scipy import optimize


class Range(NamedTuple):
    """The share of the excess of each seed in a range of steps around ``tokens`` million tokens."""

    tokens: float
    shares: Floats

    @property
    def interval(self) -> stats.Interval:
        return stats.mean_interval(list(self.shares), ALPHA)


class Schedule(NamedTuple):
    """What the runs of one table share."""

    model: str
    parameters: int
    corpus: str
    steps: int

    def __str__(self) -> str:
        return f"{self.model}, {self.steps:,} steps of {self.corpus}"


class Line(NamedTuple):
    """The ranges of one kind of run of one schedule, by phase, the fitted phase first."""

    schedule: Schedule
    label: str
    phases: dict[str, list[Range]]

    @property
    def fitted(self) -> list[Range]:
        return next(iter(self.phases.values()))

    @property
    def spread(self) -> Floats:
        """The sd over seeds of each fitted range, pooled with its neighbors."""
        return np.maximum(stats.with_neighbors(np.array([r.shares.std(ddof=1) for r in self.fitted])), 1e-12)

    @property
    def seen(self) -> bool:
        """Whether the gap in the ranges that are fitted differs from zero.

        The mean of these ranges, with the weights of the fit, has an interval over seeds that excludes zero. With three
        or four seeds without a gap, 5% to 7% of such intervals do.
        """
        shares = np.array([r.shares for r in self.fitted[:-1]])
        if not shares.size or shares.shape[1] < 2:
            return False
        found = stats.mean_interval(list(np.average(shares, axis=0, weights=self.spread[:-1] ** -2.0)), ALPHA)
        return not found.low <= 0 <= found.high


Losses = Mapping[tuple[str, str, int], list[Part]]
"""The parts of each run of a schedule by label, variant and seed."""


def lines(found: Sequence[Part]) -> list[Line]:
    """Return the lines of all schedules: each recipe relative to BF16's run and replicas of the same seed.

    The line of BF16 itself is that of its replicas relative to its run. Raises ``ValueError`` if the runs of a schedule
    have other phases, or if a run is given twice.
    """
    made: list[Line] = []
    by_schedule: dict[Schedule, dict[tuple[str, str, int], list[Part]]] = {}
    for p in found:
        runs = by_schedule.setdefault(Schedule(p.model, p.parameters, p.corpus, p.steps), {})
        runs.setdefault((p.label, p.variant, p.seed), []).append(p)
    for schedule, runs in by_schedule.items():
        ranges = {tuple((p.phase, p.low, p.high) for p in run) for run in runs.values()}
        if len(ranges) > 1 or any(len(set(one)) < len(one) for one in ranges):
            raise ValueError(f"{schedule}: its runs have several schedules, or one is given twice; give each run once")
        for label in dict.fromkeys(label for label, _, _ in runs):
            if by_seed := _gaps(runs, label):
                name = ONE_ULP if label == CONTROL_RECIPE else label
                made.append(Line(schedule, name, _phases(next(iter(runs.values())), by_seed)))
    return made


def _gaps(runs: Losses, label: str) -> list[tuple[Floats, Floats]]:
    """Return (gap, BF16's excess) of each part, by seed."""
    made = []
    for seed in sorted({s for one, _, s in runs if one == label}):
        own = {v: _losses(ps) for (one, v, s), ps in runs.items() if (one, s) == (label, seed)}
        bf16 = {v: _losses(ps) for (one, v, s), ps in runs.items() if (one, s) == (CONTROL_RECIPE, seed)}
        if both := pair(own, None if label == CONTROL_RECIPE else bf16):
            floor = next(iter(runs.values()))[0].floor
            made.append((both[0] - both[1], both[1] - floor))
    return made


def _losses(found: Sequence[Part]) -> Floats:
    return np.array([p.loss for p in found])


def _phases(first: Sequence[Part], by_seed: Sequence[tuple[Floats, Floats]]) -> dict[str, list[Range]]:
    made: dict[str, list[Range]] = {}
    for i, part in enumerate(first):
        tokens = part.tokens * float(np.sqrt(part.low * part.high)) / 1e6
        made.setdefault(part.phase, []).append(Range(tokens, np.array([gap[i] / excess[i] for gap, excess in by_seed])))
    return made


class Fit(NamedTuple):
    """share = a (tokens / 1e6)^b (parameters / 1e6)^c, and what it says of the ranges that it did not see.

    ``halves`` are half the intervals of a, b and, over several sizes, c, from the scatter around the fit.
    """

    a: float
    b: float
    c: float
    halves: list[float]
    predicted: list[float]


def power(x: Floats, a: float, b: float, c: float = 0.0) -> Floats:
    """``x``: million tokens and million parameters, [2, points]."""
    return np.asarray(a * x[0] ** b * x[1] ** c)


def fit(some: Sequence[Line]) -> Fit | None:
    """Fit all but the last range of each line, weighted by the spread of its seeds. None if nothing can be fitted."""
    seen, errors, held = [], [], []
    for line in some:
        errors += line.spread.tolist()[:-1]
        points = [(r.tokens, line.schedule.parameters / 1e6, float(r.shares.mean())) for r in line.fitted]
        seen += points[:-1]
        held.append(points[-1][:2])
    x, y = np.array(seen).T[:2], np.array(seen).T[2]
    free = 2 if len(some) == 1 else 3
    start = [abs(float(y[-1])) or 1e-3, 0.5, 0.0]
    try:
        found, spread = optimize.curve_fit(power, x, y, p0=start[:free], sigma=errors, maxfev=5_000)
    except RuntimeError:  # no fit within scipy's number of evaluations
        return None
    a, b, c = [*map(float, found), 0.0][:3]
    halves = stats.student(1 - ALPHA, len(y) - free) * np.sqrt(np.diag(spread))
    return Fit(a, b, c, halves.tolist(), power(np.array(held).T, a, b, c).tolist())


def _share(found: stats.Interval) -> str:
    return f"{100 * found.mean:+.2f}" + (f" ± {100 * (found.high - found.mean):.2f}" if found.n > 1 else "")


def ends(some: Sequence[Line]) -> list[str]:
    """Return the table of one schedule: the share at its beginning and at the end of each phase, and differences."""
    [first, *_] = some
    rows = [[x.label, str(len(x.fitted[0].shares)), _share(x.fitted[0].interval)] for x in some]
    for row, line in zip(rows, some, strict=True):
        row += [_share(found[-1].interval) for found in line.phases.values()]
    for one, two in combinations([x for x in some if not x.label.startswith(CONTROL_RECIPE)], 2):
        last = [(x.fitted[0], *(found[-1] for found in x.phases.values())) for x in (one, two)]
        if len(last[0][0].shares) == len(last[1][0].shares):
            apart = [stats.mean_interval(list(b.shares - a.shares), ALPHA) for a, b in zip(*last, strict=True)]
            rows.append([f"{two.label} - {one.label}", str(len(last[0][0].shares)), *map(_share, apart)])
    begins = f"{first.fitted[0].tokens:.1f} million tokens"
    names = [f"end of {p}, {found[-1].tokens:.0f} million" for p, found in first.phases.items()]
    return markdown(["% of the excess at", "seeds", begins, *names], rows)


def fits(some: Sequence[Line]) -> list[str]:
    """Return the table of fits: each line of its own, and each recipe over all models that have a constant phase."""
    rows = []
    recipes = [x for x in some if x.label != ONE_ULP]
    groups = [[x] for x in recipes]
    for key in dict.fromkeys((x.label, x.schedule.corpus) for x in recipes):
        sizes = [x for x in recipes if (x.label, x.schedule.corpus) == key and "constant" in x.phases]
        groups += [sizes] if len({x.schedule.parameters for x in sizes}) > 1 and all(x.seen for x in sizes) else []
    for group in groups:
        name = f"{group[0].label}, {'; '.join(str(x.schedule) for x in group)}"
        measured = ", ".join(_share(x.fitted[-1].interval) for x in group)
        made = fit(group) if all(x.seen for x in group) else None
        numbers = ["no gap seen", "", "", ""]
        if made:
            share, *powers = made.halves
            texts = [f"{x:.2f} ± {half:.2f}" for x, half in zip((made.b, made.c), powers, strict=False)]
            predicted = ", ".join(f"{100 * p:+.2f}" for p in made.predicted)
            numbers = [f"{100 * made.a:+.3f} ± {100 * share:.3f}", *[*texts, ""][:2], predicted]
        rows.append([name, *numbers, measured])
    return markdown(["fit", "a, %", "b", "c", "last range predicted, %", "measured, %"], rows)


def tables(found: Sequence[Part]) -> Iterator[str]:
    """Yield the tables of all schedules, and of the fits."""
    made = lines(found)
    for schedule in dict.fromkeys(x.schedule for x in made):
        table = ends([x for x in made if x.schedule == schedule])
        yield from [f"{schedule}, {schedule.parameters / 1e6:.1f} million parameters:", "", *table, ""]
    yield from fits(made)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("paths", type=Path, nargs="+", help="record sets, or .csv files that --keep wrote")
    options.add_argument("--keep", type=Path, help="a .csv file for the mean losses of all parts")
    args = options.parse_args()
    found = read(args.paths)
    if args.keep:
        keep(found, args.keep)
    print("\n".join(tables(found)))


if __name__ == "__main__":
    main()
