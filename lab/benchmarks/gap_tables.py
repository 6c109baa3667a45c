"""Print the table of record sets, of losses or of speeds, or write those of two pages.

python lab/benchmarks/gap_tables.py golden/records/h200.zip
python lab/benchmarks/gap_tables.py --lengths FOLDER    (records of lab/benchmarks/long_runs.py)
python lab/benchmarks/gap_tables.py --optimizers        (goldens of other optimizers, relative to AdamW's)
python lab/benchmarks/gap_tables.py --write docs/theory.md docs/throughput.md
"""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity.judging import policy, references, stats, worth
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.trainer_calibration import REPLICA
from fp8parity.judging.verdict import SpeedDetail
from fp8parity.records import sets
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import CellRow, Report
from fp8parity.workload.schedule import OPTIMIZED

GOLDEN = Path(__file__).parents[2] / "golden"


def report(today: datetime.date, *records: Path) -> Report:
    stored, rules = references.load(GOLDEN), policy.load(GOLDEN, today)
    [found] = evaluate(sets.load(records), stored, rules)
    evidence = Evidence(found.machine.records, stored, rules)
    return Report(found.verdicts, None, [], found.machine.environment.device, evidence)


def gaps(r: Report) -> list[str]:
    """Gaps in per cent with half their interval, by recipe and model."""
    found = {(row.label, row.model): _gap(row) for row in r.rows}
    models = list(dict.fromkeys(model for (_, model), text in found.items() if text != "-"))
    heads = ["recipe", *(f"gap at {model}, %" for model in models)]
    rows = [
        [label, *(found.get((label, m), "-") for m in models)] for label in dict.fromkeys(row.label for row in r.rows)
    ]
    return markdown(heads, [row for row in rows if set(row[1:]) != {"-"}])


def speeds(r: Report) -> list[str]:
    """Speed and peak memory of a step relative to BF16's, by recipe and model, the slowest model first."""
    timed = sorted(_timed(r), key=lambda item: item[1].bf16_tokens_per_second)
    models = list(dict.fromkeys(cell.model for cell, _ in timed))
    labels = sorted({cell.label for cell, _ in timed})
    found = {(c.label, c.model): f"{s.ratio:.2f}x, {s.memory / s.bf16_memory:.2f}x" for c, s in timed}
    return markdown(["recipe", *models], [[label, *(found.get((label, m), "-") for m in models)] for label in labels])


def _timed(r: Report) -> list[tuple[Cell, SpeedDetail]]:
    return [(v.cell, v.speed) for v in r.verdicts if v.speed]


EDGES = (300, 600, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000)
"""The ends of the ranges of steps before the judged tail."""
ALPHA = 0.025
"""On each side: the intervals over seeds are those of 95%."""


ONE_ULP = "bf16, one ulp"


class Line(NamedTuple):
    """The gaps to BF16 of one kind of run, by seed: of each step, relative to BF16's loss."""

    label: str
    gaps: dict[int, stats.Floats]


def losses_of(run: Trajectory) -> stats.Floats:
    return np.asarray(run.loss)


def held_out(run: Trajectory) -> stats.Floats:
    """Return the held-out losses of the judged tail."""
    return np.asarray([loss for step, loss in run.validation if step >= run.steps - run.tail])


def lines(runs: Sequence[Trajectory], of_run: Callable[[Trajectory], stats.Floats] = losses_of) -> list[Line]:
    """Return the gap of each recipe to the mean of BF16's run and replicas of its seed.

    The line of BF16 itself is the gap of its replicas to its run. Replicas of a recipe are averaged with its run.
    """
    of: dict[tuple[Cell, int], dict[str, stats.Floats]] = {}
    for r in runs:
        if sound(r):
            of.setdefault((r.cell, r.seed), {})[r.variant] = of_run(r)
    made: dict[str, dict[int, stats.Floats]] = {}
    for (cell, seed), found in of.items():
        label = ONE_ULP if cell.is_control else cell.label
        if both := pair(found, None if cell.is_control else of.get((cell.control, seed), {})):
            made.setdefault(label, {})[seed] = both[0] / both[1] - 1
    return [Line(label, gaps) for label, gaps in made.items()]


def sound(run: Trajectory) -> bool:
    """Return whether no fault was planted in a run."""
    return not run.variant or run.variant.startswith(REPLICA)


def pair(
    own: Mapping[str, stats.Floats], bf16: Mapping[str, stats.Floats] | None
) -> tuple[stats.Floats, stats.Floats] | None:
    """Return the means over the run and the replicas of a seed: of a recipe, and of BF16.

    Without ``bf16``, ``own`` is BF16 itself, and its replicas are paired with its run. None if a side is empty.
    """
    if bf16 is None:
        own, bf16 = {v: x for v, x in own.items() if v}, {v: x for v, x in own.items() if not v}
    if not (own and bf16):
        return None
    return np.mean(list(own.values()), axis=0), np.mean(list(bf16.values()), axis=0)


def lengths(runs: Sequence[Trajectory]) -> list[str]:
    """Gaps by range of steps, the share of the excess in the tail, and the difference of each two recipes."""
    first = runs[0]
    if len({(r.cell.model, r.spec_hash) for r in runs}) > 1 or first.floor is None:
        raise ValueError("give runs of one model and schedule, on a corpus with a known floor")
    start = first.steps - first.tail
    edges = [e for e in EDGES if e < start]
    ranges = [*pairwise([*edges, start]), (start, first.steps)]
    bf16 = [r.loss for r in runs if r.cell.is_control and not r.variant]
    found = sorted(lines(runs), key=lambda line: float(np.mean([g[start:].mean() for g in line.gaps.values()])))

    def interval(values: Sequence[float]) -> stats.Interval:
        return stats.mean_interval(values, ALPHA)

    def excess(tail: stats.Interval) -> str:
        cost = worth.cost(tail, bf16, first.tail, first.floor)
        return f"{100 * cost.mean:+.2f} ± {100 * (cost.high - cost.mean):.2f}" if cost else "-"

    def both(i: stats.Interval) -> str:
        return f"{100 * i.mean:+.4f} ± {100 * (i.high - i.mean):.4f}"

    unseen = {label: interval([float(g.mean()) for g in gaps.values()]) for label, gaps in lines(runs, held_out)}
    rows = []
    for label, gaps in found:
        parts = [interval([float(g[low:high].mean()) for g in gaps.values()]) for low, high in ranges]
        rows.append([label, str(len(gaps)), *map(both, (*parts, unseen[label])), excess(parts[-1])])
    spans = [f"{low:,}-{high:,}" for low, high in ranges]
    heads = ["mean gap, %, steps", "seeds", *spans, "held-out, tail", "% of the tail's excess"]
    pairs = []
    for less, more in combinations([line for line in found if line.label != ONE_ULP], 2):
        seeds = sorted(less.gaps.keys() & more.gaps.keys())
        apart = interval([float((more.gaps[s] - less.gaps[s])[start:].mean()) for s in seeds])
        told = "yes" if not apart.low <= 0 <= apart.high else "no"
        pairs.append([f"{more.label} - {less.label}", str(len(seeds)), both(apart), excess(apart), told])
    apart_heads = ["difference in the tail, %", "seeds", "of the loss", "of the excess", "excludes zero"]
    return [*markdown(heads, rows), "", *markdown(apart_heads, pairs)]


def optimizers() -> list[str]:
    """Gaps of the goldens of other optimizers to AdamW's, from the same weights and batches."""
    stored, rows = references.load(GOLDEN).loss, []
    for (model, corpus), golden in stored.items():
        plain = stored.get((OPTIMIZED.get(model, ""), corpus))
        if plain:
            pairs = [(own, other) for own in golden.seeds if (other := plain.seed(own.seed))]
            assert all(own.initial_weights == other.initial_weights for own, other in pairs)
            ours, theirs = ([run.mean_loss for run in runs] for runs in zip(*pairs, strict=True))
            gap = stats.mean_interval(stats.relative_gaps(ours, theirs, golden.tail), ALPHA)
            rows.append([model, str(len(pairs)), f"{100 * gap.mean:+.3f} ± {100 * (gap.high - gap.mean):.3f}"])
    return markdown(["golden", "seeds", "gap to AdamW, %"], rows)


def markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _gap(cell: CellRow) -> str:
    if cell.mean is None or cell.high is None:
        return "-"
    text = f"{100 * cell.mean:+.3f} ± {100 * (cell.high - cell.mean):.3f}"
    return text if cell.parity == "pass" else f"{text} ({cell.parity})"


MARK = re.compile(r"(?<=<!-- measured: )(gaps|speeds)( -->\n).*?(?=\n<!-- end -->)", re.S)
SETS = {"gaps": "h200.zip", "speeds": "h200-throughput.zip"}
"""The tables of docs/theory.md and docs/throughput.md, and the set of each."""


def current(text: str, today: datetime.date) -> str:
    """Return a page with its measured tables made again from the shipped sets."""
    makes = {"gaps": gaps, "speeds": speeds}

    def made(found: re.Match[str]) -> str:
        shipped = report(today, GOLDEN / "records" / SETS[found[1]])
        return found[1] + found[2] + "\n".join(makes[found[1]](shipped))

    return MARK.sub(made, text)


def trained(*paths: Path) -> list[Trajectory]:
    return [r for r in load_records(*paths) if isinstance(r, Trajectory)]


if __name__ == "__main__":
    if sys.argv[1] == "--write":
        for page in map(Path, sys.argv[2:]):
            page.write_text(current(page.read_text(), datetime.date.today()))
        sys.exit()
    if sys.argv[1] == "--lengths":
        print("\n".join(lengths(trained(*map(Path, sys.argv[2:])))))
        sys.exit()
    if sys.argv[1] == "--optimizers":
        print("\n".join(optimizers()))
        sys.exit()
    made = report(datetime.date.today(), *map(Path, sys.argv[1:]))
    print(made.sentence)
    print("\n".join(speeds(made) if _timed(made) else gaps(made)))
