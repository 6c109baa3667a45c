"""Measures what ``fp8parity verdict`` is worth, on this suite's own runs: the correlations that tell pairs from other runs, and the error
rates of its verdicts on planted gaps, in each format.

A planted pair is a sound FP8 run beside its BF16 run, its losses made larger by the gap, or by a gap that grows evenly. A mis-pair has
the BF16 run of another seed. Each gap of a format takes the same runs. This suite's runs repeat better than the published ones,
so ``SPREAD`` adds the published spread between equal runs to the gap, another draw for each pair.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity import runs
from fp8parity.judging.pair import judge, shape
from fp8parity.judging.pair.aligned import PUBLISHED, PairOptions, Pairs, align
from fp8parity.judging.pair.pairing import correlation
from fp8parity.judging.stats import share_interval
from fp8parity.records import atomic
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_records
from fp8parity.runs.run import Run
from log_files import WRITERS, Curve, curve_of

SEED = 20261122
OWN_GAP = {("te-nvfp4", None), ("te-nvfp4-tail-bf16", None), ("te-delayed", "1b")}
"""Recipes whose own measured gap is far from zero (golden/policy.toml gives te-nvfp4 and te-delayed wider margins, and the variant has the
GEMMs of te-nvfp4 in most of its layers): planted gaps would be added to it."""
GAPS = {"no gap": 0.0, "gap 0.5%": 0.005, "gap 1%": 0.01, "gap 2%": 0.02}
SPREAD = {
    "no gap, with spread": 0.0,
    "gap at the margin, with spread": PairOptions.margin,
    "gap 0.5%, with spread": 0.005,
}
SPIKES = {"none": 0.0, "1%": 0.01, "2%": 0.02, "5%": 0.05}
GROWS = "grows to 0.5%"
OTHER = "other seed"


class Recorded(NamedTuple):
    """A recorded FP8 run, its BF16 run, and BF16 runs of other seeds."""

    candidate: Trajectory
    control: Trajectory
    others: list[Trajectory]


def recorded(records: Iterable[AnyRecord]) -> list[Recorded]:
    """The complete pairs among these records, the same pair once."""
    found = [r for r in records if isinstance(r, Trajectory) and not r.variant and len(r.loss) == r.steps]
    controls: dict[tuple[object, ...], Trajectory] = {}
    for r in found:
        if r.cell.is_control:
            controls.setdefault((*_where(r), r.seed), r)
    pairs, seen = [], set()
    for r in found:
        control = controls.get((*_where(r), r.seed))
        if r.cell.is_control or control is None or tuple(r.loss) in seen:
            continue
        seen.add(tuple(r.loss))
        pairs.append(Recorded(r, control, [c for k, c in controls.items() if k[:-1] == _where(r) and k[-1] != r.seed]))
    return pairs


def sound(pairs: Iterable[Recorded]) -> list[Recorded]:
    """The pairs whose own gap is near zero."""
    return [
        p
        for p in pairs
        if not {(p.candidate.cell.recipe, None), (p.candidate.cell.recipe, p.candidate.cell.model)} & OWN_GAP
    ]


def _where(r: Trajectory) -> tuple[object, ...]:
    return r.cell.model, r.cell.corpus, r.steps, r.provenance.device


def as_run(r: Trajectory) -> Run:
    return _run(curve_of(r))


def correlations(pairs: Sequence[Recorded]) -> list[str]:
    """A table: model -> the lowest correlation of pairs, the highest of mis-pairs."""
    rows: dict[str, tuple[list[float], list[float]]] = {}
    for p in pairs:
        same, other = rows.setdefault(p.candidate.cell.model, ([], []))
        candidate = as_run(p.candidate)
        same.append(correlation(align(as_run(p.control), candidate))[0])
        other += [correlation(align(as_run(c), candidate))[0] for c in p.others]
    lines = ["| model | pairs | lowest correlation | mis-pairs | highest correlation |", "|---|---|---|---|---|"]
    return lines + [
        f"| {model} | {len(same)} | {min(same):.3f} | {len(other)} | {f'{max(other):.3f}' if other else '-'} |"
        for model, (same, other) in rows.items()
    ]


def spreads(pairs: Sequence[Recorded]) -> list[str]:
    """A table: model -> how far the tail gaps of a recipe spread over seeds, pooled over recipes."""
    groups: dict[str, dict[str, list[float]]] = {}
    for p in pairs:
        pair = align(as_run(p.control), as_run(p.candidate))
        groups.setdefault(p.candidate.cell.model, {}).setdefault(p.candidate.cell.id, []).append(
            float(pair.gap[-pair.tail :].mean())
        )
    lines = ["| model | recipes | runs | standard deviation of the tail gap |", "|---|---|---|---|"]
    for model, cells in groups.items():
        several = [g for g in cells.values() if len(g) > 1]
        squares, df = sum(float(np.var(g) * len(g)) for g in several), sum(len(g) - 1 for g in several)
        lines.append(f"| {model} | {len(several)} | {sum(map(len, several))} | {np.sqrt(squares / df):.4%} |")
    return lines


def spikes(pairs: Sequence[Recorded]) -> list[str]:
    """A table: planted spike of a twentieth of the run from its middle on -> the pairs of which the first sentence tells a rise above the
    margin, and those of which a line tells a move downwards by more than the margin from the beginning of the spike on."""
    lines = ["| spike | pairs | told as a rise | told as a move downwards |", "|---|---|---|---|"]
    for name, size in SPIKES.items():
        made = [(p, curve_of(p.candidate).with_gap(_middle(p.candidate.steps, size))) for p in pairs]
        found = [shape.describe_jumps(Pairs((align(as_run(p.control), _run(fp8)),), PairOptions())) for p, fp8 in made]
        down = [
            any(_downwards(f.text, p.candidate.steps // 2) for f in told)
            for (p, _), told in zip(made, found, strict=True)
        ]
        lines.append(
            f"| {name} | {len(pairs)} | {sum(any(f.headline for f in told) for told in found)} | {sum(down)} |"
        )
    return lines


def _downwards(text: str, start: int) -> bool:
    """Whether a line tells a move downwards above the margin after a step."""
    by = re.search(r" by (-[\d.]+)% (?:at|from) step (\d+)", text)
    return bool(by and float(by[1]) / 100 < -PairOptions.margin and int(by[2]) > start)


def _middle(steps: int, size: float) -> list[float]:
    """A gap of ``size`` for a twentieth of the steps, from their middle on."""
    return [size if 10 * steps <= 20 * step < 11 * steps else 0.0 for step in range(steps)]


def planted(p: Recorded) -> dict[str, tuple[Curve, Curve]]:
    """The planted pairs of one recorded pair: (BF16, FP8) by name."""
    bf16, fp8 = curve_of(p.control), curve_of(p.candidate)
    ramp = np.linspace(0, 0.005, len(fp8.loss)).tolist()
    away = random.Random(f"{SEED} {p.candidate.final_weights} {p.candidate.loss[-1]}").gauss(0, PUBLISHED.sd)
    made = {name: (bf16, fp8.with_gap(gap)) for name, gap in GAPS.items()} | {GROWS: (bf16, fp8.with_gap(ramp))}
    made |= {name: (bf16, fp8.with_gap(gap + away)) for name, gap in SPREAD.items()}
    return made | ({OTHER: (curve_of(p.others[0]), fp8)} if p.others else {})


PLANTED = (*GAPS, GROWS, OTHER)
RIGHT = {
    "no gap": ("pass",),
    "no gap, with spread": ("pass",),
    "gap at the margin, with spread": ("inconclusive",),
    OTHER: ("inconclusive",),
}
"""The right verdict on each planted pair. On a gap it is ``fail``."""
WRONG = {"no gap": "fail", "no gap, with spread": "fail"}
"""The verdict that would do harm. On everything but a sound pair it is ``pass``."""


def rates(pairs: Sequence[Recorded], formats: Sequence[str], names: Sequence[str]) -> list[str]:
    """A table: for each format and planted pair, how many got the right verdict, and how many the one that would do harm."""
    lines = [f"| format | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for format in formats:
        cells = []
        for name in names:
            found = [_judged(format, made[name]) for p in pairs if name in (made := planted(p))]
            cells.append(_cell(name, found))
        lines.append(f"| {format} | {' | '.join(cells)} |")
    return lines


def whole(pairs: Sequence[Recorded]) -> list[str]:
    """A table of all pairs, read from memory: planted pair -> counts, with the exact 95% interval of the harmful ones."""
    lines = ["| planted | pairs | right verdict | harmful verdict [95% interval] |", "|---|---|---|---|"]
    for name in (*PLANTED, *SPREAD):
        found = [
            judge([_run(a)], [_run(b)], PairOptions()).status
            for p in pairs
            if name in (made := planted(p))
            for a, b in [made[name]]
        ]
        right, wrong = (
            sum(s in kinds for s in found) for kinds in (RIGHT.get(name, ("fail",)), (WRONG.get(name, "pass"),))
        )
        low, high = share_interval(wrong, len(found))
        words = f"{' or '.join(RIGHT.get(name, ('fail',)))}: {right}"
        lines.append(
            f"| {name} | {len(found)} | {words} | {WRONG.get(name, 'pass')}: {wrong} [{low:.1%}, {high:.1%}] |"
        )
    return lines


def _run(c: Curve) -> Run:
    return Run(
        source="memory", format="record", axis="steps", averaging="of one step", points=list(c.steps), loss=c.loss, grad_norm=c.grad_norm,
        learning_rate=c.learning_rate, decimals=None,
    )  # fmt: skip


def _cell(name: str, found: Sequence[str]) -> str:
    right, wrong = sum(s in RIGHT.get(name, ("fail",)) for s in found), found.count(WRONG.get(name, "pass"))
    return f"{right} of {len(found)}" + (f", harmful {wrong}" if wrong else "")


def _judged(format: str, curves: tuple[Curve, Curve]) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        bf16, fp8 = (
            runs.read(WRITERS[format](Path(scratch) / side, c)) for side, c in zip(("bf16", "fp8"), curves, strict=True)
        )
        return judge([bf16], [fp8], PairOptions()).status


MARK = re.compile(r"(<!-- pairs: (\w+) -->\n).*?(<!-- end -->)", re.S)


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("records", type=Path, nargs="+")
    made.add_argument("--n", type=int, default=40, help="planted pairs of each gap, in every format (default: 40)")
    made.add_argument(
        "--write", type=Path, metavar="FILE", help="measure the tables of this page, and put them into it"
    )
    args = made.parse_args()
    pairs = recorded(r for path in args.records for r in load_records(path))
    near = sound(pairs)
    makers = {
        "correlations": lambda: correlations(pairs),
        "spreads": lambda: spreads(near),
        "whole": lambda: whole(near),
        "spikes": lambda: spikes(near),
        "formats": lambda: rates(random.Random(SEED).sample(near, min(args.n, len(near))), list(WRITERS), PLANTED),
    }
    page = args.write.read_text() if args.write else ""
    wanted = [m[2] for m in MARK.finditer(page)] if args.write else list(makers)
    tables = {name: makers[name]() for name in wanted}
    for name, lines in tables.items():
        print(f"{name}\n" + "\n".join(lines))
    if args.write:
        atomic.write(args.write, MARK.sub(lambda m: m[1] + "\n".join(tables[m[2]]) + "\n" + m[3], page))


if __name__ == "__main__":
    main()
