"""Are the pairs of timed turns independent? Their interval assumes it. At its power limit a GPU lets fast and slow pairs take turns.

    python benchmarks/alternation.py golden/records/h100-throughput.zip golden/records/h100-blocks-again.zip
    python benchmarks/alternation.py golden/records/h100-blocks-again.zip --slower 0.08 --single

For each timed step and block of the sets: the correlation of the ratio of a pair with that of the next one (0 if they are independent,
-1 if they alternate), how wide the interval of the median is, how wide that of the median of two pairs joined is, and how far the
medians of odd and even pairs are apart. Then the verdicts, if every step of the recipe took longer by a share (``--slower``), and if all
pairs counted one by one (``--single``).
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from fp8parity.judging import policy, speed, stats
from fp8parity.judging import references as goldens
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.speed import ALTERNATING
from fp8parity.records import sets
from fp8parity.records.schema import Throughput

GOLDEN = Path(__file__).parents[1] / "golden"


class Row(NamedTuple):
    """What one record says. Widths and ``apart`` are shares of the ratio."""

    label: str
    correlation: float
    width: float
    joined: float
    apart: float


def row(record: Throughput) -> Row:
    ratios = speed.together(record, 1)
    (middle, low, high), (_, least, most) = map(stats.median_interval, (ratios, speed.together(record, 2)))
    apart = abs(median(ratios[1::2]) - median(ratios[::2])) / middle
    return Row(
        record.cell.id, stats.next_correlation(np.log(ratios)), (high - low) / middle, (most - least) / middle, apart
    )


def table(rows: list[Row]) -> str:
    lines = [f"{'cell':<40} {'next':>6} {'width':>7} {'joined':>7} {'apart':>7}"]
    lines += [f"{r.label:<40} {r.correlation:+6.2f} {r.width:7.1%} {r.joined:7.1%} {r.apart:7.1%}" for r in rows]
    found = sorted(r.correlation for r in rows)
    below = sum(c < ALTERNATING for c in found)
    last = (
        f"{len(rows)} record{'' if len(rows) == 1 else 's'}; correlation with the next pair: median {median(found):+.2f}, "
        f"{found[0]:+.2f} to {found[-1]:+.2f}, {below} below {ALTERNATING}; odd and even pairs are "
        f"{max(r.apart for r in rows):.1%} apart at most"
    )
    return "\n".join([*lines, "", last])


def verdicts(records: list[Throughput], slower: float) -> str:
    """How many of these records are green, red and undecided, if every step of the recipe took longer by a share."""
    references = goldens.load(GOLDEN), policy.load(GOLDEN, datetime.date.today())
    changed = [r.model_copy(update={"recipe_seconds": [t * (1 + slower) for t in r.recipe_seconds]}) for r in records]
    count = Counter(v.status for r in changed for e in evaluate([r], *references) for v in e.verdicts)
    return f"{slower:.0%} slower: " + ", ".join(f"{n} {status}" for status, n in count.most_common())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sets", nargs="+", type=Path, metavar="SET", help="folders or .zip files with timed steps or blocks"
    )
    parser.add_argument(
        "--slower", type=float, default=0.0, metavar="SHARE", help="the recipe's steps take longer by this share"
    )
    parser.add_argument("--single", action="store_true", help="judge the pairs one by one, also where they alternate")
    args = parser.parse_args(arguments)
    found = [r for path in args.sets for r in sets.load([path])]
    timed = [r for r in found if isinstance(r, Throughput) and len(r.bf16_seconds) >= 12]
    if not timed:
        raise SystemExit("no step or block of 12 pairs or more is in these sets")
    print(table([row(r) for r in timed]))
    if args.single:
        speed.ALTERNATING = -math.inf
    print(verdicts(timed, args.slower))


if __name__ == "__main__":
    main()
