"""Fit how the gap of a recipe grows with the length of a run, and test the fit on a length that it has not seen.

    python benchmarks/gap_law.py FOLDER ...      (runs of benchmarks/long_runs.py, of one or several models)

The gap is a share of BF16's excess over the entropy of the corpus. The fit is share = a (tokens / 1e6)^b, of the
constant phase of the learning rate or, without one, of the decay. Its last range is held out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity.judging import stats
from fp8parity.judging.stats import Floats
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory
from gap_tables import ALPHA, ONE_ULP, lines, markdown
from scipy import optimize

RANGES = 8
"""The ranges of a phase that are fitted, each as much longer than the one before."""
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


Losses = Mapping[int, Floats]
"""A number of each step, by seed."""


class Range(NamedTuple):
    """The share of the excess of each seed in a range of steps around ``tokens`` million tokens."""

    tokens: float
    shares: Floats


def ranges(gaps: Losses, bf16: Losses, phase: Phase, tokens: int, floor: float) -> list[Range]:
    """Return the shares of a recipe in ranges of one phase. ``tokens`` are those of a step."""
    edges = np.unique(np.geomspace(max(phase.start, FIRST), phase.end, RANGES + 1).astype(int))
    made = []
    for low, high in pairwise(edges):
        parts = [(gaps[s][low:high] * bf16[s][low:high], bf16[s][low:high] - floor) for s in sorted(gaps)]
        shares = np.array([gap.mean() / excess.mean() for gap, excess in parts])
        made.append(Range(tokens * float(np.sqrt(low * high)) / 1e6, shares))
    return made


class Fit(NamedTuple):
    """A power law, and what it says about the range that it did not see: predicted, measured with its interval."""

    a: float
    b: float
    predicted: float
    measured: stats.Interval


def power(tokens: Floats, a: float, b: float) -> Floats:
    return np.asarray(a * tokens**b)


def fit(found: Sequence[Range]) -> Fit | None:
    """Fit all but the last range, each weighted by the spread of its seeds. None if nothing can be fitted."""
    tokens = np.array([r.tokens for r in found])
    means = np.array([r.shares.mean() for r in found])
    errors = np.array([r.shares.std(ddof=1) for r in found]) if len(found[0].shares) > 1 else np.ones(len(found))
    errors = np.maximum(stats.with_neighbors(errors), 1e-12)
    try:
        (a, b), _ = optimize.curve_fit(power, tokens[:-1], means[:-1], p0=(abs(means[-2]), 0.5), sigma=errors[:-1])
    except RuntimeError:  # no fit within scipy's number of evaluations
        return None
    measured = stats.mean_interval(list(found[-1].shares), ALPHA)
    return Fit(float(a), float(b), float(power(tokens[-1:], a, b)[0]), measured)


def tables(runs: Sequence[Trajectory]) -> Iterator[str]:
    """Yield the tables of one model: the gap in each phase, and the fits."""
    first = runs[0]
    if len({(r.cell.model, r.spec_hash) for r in runs}) > 1 or first.floor is None:
        raise ValueError("give runs of one schedule for each model, on a corpus with a known floor")
    step = int(first.schedule["rows"] * first.schedule["length"] * first.schedule["accumulation"])
    bf16 = {r.seed: np.asarray(r.loss) for r in runs if r.cell.is_control and not r.variant}
    steps, found = phases(first.schedule), lines(runs)
    growing = steps[0]
    yield f"{first.cell.model}: {first.schedule['steps']:,} steps of {step:,} tokens, {len(bf16)} seeds"
    rows, fits = [], []
    for label, gaps in found:
        whole = [ranges(gaps, bf16, p, step, first.floor) for p in steps]
        ends = [stats.mean_interval(list(part[-1].shares), ALPHA) for part in whole]
        rows.append([label, *(f"{100 * e.mean:+.2f} ± {100 * (e.high - e.mean):.2f}" for e in ends)])
        made = fit(ranges(gaps, bf16, growing, step, first.floor)) if label != ONE_ULP else None
        if made:
            half = made.measured.high - made.measured.mean
            measured = f"{100 * made.measured.mean:+.2f} ± {100 * half:.2f}"
            fits.append([label, f"{100 * made.a:+.3f}", f"{made.b:.2f}", f"{100 * made.predicted:+.2f}", measured])
    yield from markdown(["% of the excess at the end of", *(p.name for p in steps)], rows)
    yield ""
    yield from markdown([f"fit of {growing.name}", "a, %", "b", "predicted", "measured"], fits)


def main(paths: Sequence[Path]) -> None:
    runs = [r for m in sets.machines(sets.load(paths)) for r in m.records if isinstance(r, Trajectory)]
    for model in dict.fromkeys(r.cell.model for r in runs):
        print("\n".join(tables([r for r in runs if r.cell.model == model])), end="\n\n")


if __name__ == "__main__":
    main([Path(p) for p in sys.argv[1:]])
