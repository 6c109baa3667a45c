"""Count how often a sound recipe is red: judge repeats with fresh seeds, from a record set with many seeds. No torch.

    pytest suites/convergence --seeds 30 --parity-records fresh
    python lab/benchmarks/false_alarms.py fresh

Each repeat takes the next seeds as a gate does, with their BF16 runs as golden and the policy of golden/. The step
bands rest on the other seeds of the set.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from pathlib import Path

import trials
from fp8parity.judging import policy, references, stats
from fp8parity.judging.references import noise
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from scipy.stats import binomtest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    rules = policy.load(args.golden_dir, datetime.date.today()).model_copy(update={"known": None})
    stored = references.load(args.golden_dir)
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory) and not r.variant]
    controls = {r.seed: r for r in runs if r.cell.is_control}
    golden = from_runs(list(controls.values()), [])
    cells: dict[Cell, list[noise.Pair]] = {}
    for r in sorted((r for r in runs if not r.cell.is_control and r.seed in controls), key=lambda r: r.seed):
        cells.setdefault(r.cell, []).append((r, controls[r.seed]))
    statuses = Counter[str]()
    for cell, left in sorted(cells.items(), key=lambda item: item[0].id):
        gaps = stats.relative_gaps([r.loss for r, _ in left], [c.loss for _, c in left], golden.tail)
        seen = []
        stages = [n for n in rules.loss_row(cell).seeds if n <= len(golden.seeds)]
        while len(left) >= stages[0]:
            part = left[: stages[-1]]
            judged = {r.seed for r, _ in part}
            row = rules.loss_row(cell)
            others = [p for c in cells for p in cells[c] if p[0].seed not in judged and rules.loss_row(c) == row]
            made = trials.with_spreads(golden, others, rules)
            own, theirs = zip(*part, strict=True)
            found = trials.verdict(trials.Trial(trials.SOUND, cell.id, own, (), theirs, made), stored, rules)
            assert found.loss is not None
            if found.status == "inconclusive" and len(part) < stages[-1]:  # the records end before the stages do
                break
            seen.append(f"{found.status}/{len(found.loss.seeds)}")
            statuses[found.status] += 1
            left = left[len(found.loss.seeds) :]
        print(f"{cell.recipe:<18} gap {stats.mean_interval(gaps, 0.025).text()} n {len(gaps)}: {' '.join(seen)}")
    total = statuses.total()
    red = total - sum(statuses[status] for status in trials.GREEN)
    low, high = binomtest(red, total).proportion_ci()
    print(f"{red} of {total} repeats are red [{low:.1%}, {high:.1%}]")


if __name__ == "__main__":
    main()
