"""Measure the error rates of ``fp8parity verdict`` on planted gaps in this suite's own runs. No torch.

    python lab/benchmarks/pairs.py SET... --write lab/docs/evidence/pairs.md
    python lab/benchmarks/pairs.py SET... --limits

A planted pair is a sound FP8 run, its losses made larger by the gap, and its BF16 run. A mis-pair has the BF16 run of
another seed. This suite's runs repeat better than published ones, so ``NOISY`` adds the published noise between equal
runs to the gap, another draw for each pair.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fp8parity.judging.pair import judge
from fp8parity.judging.pair import pairs as paired
from fp8parity.judging.pair.aligned import PUBLISHED, Aligned, align, changes_of, correlate
from fp8parity.judging.pair.away import robust_sd
from fp8parity.judging.pair.options import PairOptions
from fp8parity.judging.pair.pairing import PART
from fp8parity.records import files
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_records
from fp8parity.runs.run import Run
from scipy.signal import lfilter
from scipy.stats import binomtest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from log_writers import Curve, curve_of

SEED = 20261122
OWN_GAP = {("te-nvfp4", None), ("te-nvfp4-tail-bf16", None), ("te-delayed", "1b")}
"""Recipes with a measured gap of their own, to which planted gaps would be added (golden/policy.toml)."""
GAPS = {"no gap": 0.0, "gap 0.5%": 0.005, "gap 1%": 0.01, "gap 2%": 0.02}
NOISY = {"no gap, with noise": 0.0, "gap at the margin, with noise": PairOptions.margin, "gap 0.5%, with noise": 0.005}
GROWS = "grows to 0.5%"
OTHER = "other seed"
NAMES = (*GAPS, GROWS, OTHER, *NOISY)
RIGHT = {
    "no gap": "pass",
    "no gap, with noise": "pass",
    "gap at the margin, with noise": "inconclusive",
    OTHER: "inconclusive",
}
"""The right verdict on each planted pair. On a gap it is ``fail``."""
HARMFUL = {"no gap": "fail", "no gap, with noise": "fail"}
"""The harmful verdict. On everything but a sound pair it is ``pass``."""
MARK = re.compile(r"(<!-- pairs: whole -->\n).*?(<!-- end -->)", re.S)


class Recorded(NamedTuple):
    """A recorded FP8 run, its BF16 run, and BF16 runs of other seeds."""

    candidate: Trajectory
    control: Trajectory
    others: list[Trajectory]


def recorded(records: Iterable[AnyRecord]) -> list[Recorded]:
    """Return the complete pairs among these records, equal pairs once."""
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


def _where(r: Trajectory) -> tuple[object, ...]:
    return r.cell.model, r.cell.corpus, r.steps, r.provenance.device


def sound(pairs: Iterable[Recorded]) -> list[Recorded]:
    """Return the pairs without a measured gap of their own."""
    cells = ((p, p.candidate.cell) for p in pairs)
    return [p for p, cell in cells if not {(cell.recipe, None), (cell.recipe, cell.model)} & OWN_GAP]


def correlations(pairs: Sequence[Recorded]) -> tuple[list[float], list[float]]:
    """Return the correlations of the detrended losses of pairs, and of mis-pairs."""
    same, other = [], []
    for p in pairs:
        candidate = _run(curve_of(p.candidate))
        same.append(_correlation(align(_run(curve_of(p.control)), candidate)))
        other += [_correlation(align(_run(curve_of(c)), candidate)) for c in p.others]
    return same, other


def _correlation(pair: Aligned) -> float:
    return correlate(changes_of(pair.reference, pair.candidate)[:, len(pair.at) // 2 :])


def limits(pairs: Sequence[Recorded]) -> Iterator[str]:
    """Yield the numbers behind ``EARLY``, ``PART``, ``SIZES`` and ``END_SD``."""
    losses = [(p, np.array(p.candidate.loss)) for p in pairs]
    same = [changes_of(np.array(p.control.loss), own) for p, own in losses]
    other = [changes_of(np.array(o.loss), own) for p, own in losses for o in p.others]
    for count in (10, 20, 80):
        found, wrong = ([correlate(c[:, :count]) for c in group if c.shape[1] >= count] for group in (same, other))
        yield f"{count} first changes: pairs {np.median(found):.3f} (median), mis-pairs at most {max(wrong):.3f}"
    found, wrong = (
        [correlate(c[:, at : at + 20]) for c in group for at in range(20, c.shape[1] - 19, 20)]
        for group in (same, other)
    )
    share = np.mean(np.array(wrong) > PART)
    yield f"parts of 20 changes but the first: pairs at least {min(found):.3f}, {share:.1%} of mis-pairs above {PART}"
    sizes = [c[1].std() / c[0].std() for c in (c[:, c.shape[1] // 2 :] for c in same if c.shape[1] >= 80)]
    smooth = lfilter([0.7], [1, -0.3], np.random.default_rng(SEED).normal(size=4000))
    yield f"size of the changes, FP8 / BF16: {min(sizes):.3f} to {max(sizes):.3f} in {len(sizes)} pairs"
    yield f"of noise after a moving average with 0.3: {np.diff(smooth, 2).std() / math.sqrt(6):.3f}"
    for name in ("loss", "grad_norm"):
        ratios = [np.log(np.divide(getattr(p.candidate, name), getattr(p.control, name))) for p in pairs]
        last = max(abs(r[-1] - np.median(r)) / robust_sd(r) for r in ratios)
        yield f"last {name}: at most {last:.1f} robust standard deviations from the median ratio"


def planted(p: Recorded) -> dict[str, tuple[Curve, Curve]]:
    """Return the planted pairs of one recorded pair: (BF16, FP8) by name."""
    bf16, fp8 = curve_of(p.control), curve_of(p.candidate)
    ramp = np.linspace(0, 0.005, len(fp8.loss)).tolist()
    away = random.Random(f"{SEED} {p.candidate.final_weights} {p.candidate.loss[-1]}").gauss(0, PUBLISHED.sd)
    made = {name: (bf16, fp8.with_gap(gap)) for name, gap in GAPS.items()} | {GROWS: (bf16, fp8.with_gap(ramp))}
    made |= {name: (bf16, fp8.with_gap(gap + away)) for name, gap in NOISY.items()}
    return made | ({OTHER: (curve_of(p.others[0]), fp8)} if p.others else {})


def table(pairs: Sequence[Recorded]) -> list[str]:
    """Return the table of all pairs: counts of right and harmful verdicts.

    The latter have an exact 95% interval.
    """
    lines = ["| planted | pairs | right verdict | harmful verdict [95% interval] |", "|---|---|---|---|"]
    every = [planted(p) for p in pairs]
    for name in NAMES:
        curves = [made[name] for made in every if name in made]
        found: list[str] = [judge(paired([_run(a)], [_run(b)], PairOptions())).status for a, b in curves]
        right, harmful = RIGHT.get(name, "fail"), HARMFUL.get(name, "pass")
        low, high = binomtest(found.count(harmful), len(found)).proportion_ci()
        counts = f"{right}: {found.count(right)} | {harmful}: {found.count(harmful)} [{low:.1%}, {high:.1%}]"
        lines.append(f"| {name} | {len(found)} | {counts} |")
    return lines


def _run(c: Curve) -> Run:
    return Run(
        source="memory", format="record", axis="steps", averaging="of one step", points=list(c.steps), loss=c.loss,
        grad_norm=c.grad_norm, learning_rate=c.learning_rate, decimals=None,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into this page")
    parser.add_argument("--limits", action="store_true", help="print the numbers behind constants instead")
    args = parser.parse_args()
    found = recorded(r for path in args.records for r in load_records(path))
    if args.limits:
        print(*limits(found), sep="\n")
        return
    same, other = correlations(found)
    print(
        f"correlation of {len(same)} pairs at least {min(same):.3f}, of {len(other)} mis-pairs at most {max(other):.3f}"
    )
    lines = "\n".join(table(sound(found)))
    print(lines)
    if args.write:
        files.write(args.write, MARK.sub(lambda m: f"{m[1]}{lines}\n{m[2]}", args.write.read_text()))


if __name__ == "__main__":
    main()
