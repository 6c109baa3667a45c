"""Count how often a sound recipe is red: judge repeats with fresh seeds, from a record set with many seeds. No torch.

    pytest suites/convergence --seeds 30 --parity-records fresh
    python benchmarks/false_alarms.py fresh

Each repeat takes the next seeds as a gate does, with their BF16 runs as golden and the policy of golden/. The step bands rest
on the other seeds of the set.
"""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from pathlib import Path

<<<<<<< HEAD
import trials
from fp8parity.judging import goldens, policy, spreads, stats
from fp8parity.judging.loss_goldens import from_runs
from fp8parity.records.cell import Cell
=======
import numpy as np
from fp8parity.judging import policy, references, stats
from fp8parity.judging.evaluate import evaluate, looks
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.verdict import Verdict
>>>>>>> main
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    rules = policy.load(args.golden_dir, datetime.date.today()).model_copy(update={"known": None})
    stored = goldens.load(args.golden_dir)
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory) and not r.variant]
    controls = {r.seed: r for r in runs if r.cell.is_control}
    golden = from_runs(list(controls.values()), [])
<<<<<<< HEAD
    cells: dict[Cell, list[spreads.Pair]] = {}
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
    low, high = stats.share_interval(red, total)
    print(f"{red} of {total} repeats are red [{low:.1%}, {high:.1%}]")
=======
    stored = Goldens({(golden.model, golden.corpus): golden}, numbers=references.load(args.golden_dir).numbers)
    paired = spreads.pairs(runs)
    total, red = 0, 0
    print(f"{golden.model}: {len(controls)} BF16 seeds, {golden.provenance.line()}")
    for cell in sorted({r.cell for r in runs if not r.cell.is_control}, key=lambda c: c.id):
        mine = sorted((r for r in runs if r.cell == cell and r.seed in controls), key=lambda r: r.seed)
        if len(mine) < 2:
            print(f"  {cell.recipe:<18} has {len(mine)} seeds beside BF16's; 2 are needed")
            continue
        gaps = np.array(stats.relative_gaps([r.loss for r in mine], [controls[r.seed].loss for r in mine], golden.tail))
        seen: list[str] = []
        while (verdict := _repeat(mine, controls, stored, rules, paired)) is not None:
            assert verdict.loss is not None
            count = len(verdict.loss.seeds)
            seen.append(f"{verdict.status}/{count}")
            mine = mine[count:]
        total, red = total + len(seen), red + sum(not s.startswith(("pass", "improved")) for s in seen)
        half = stats.mean_interval(gaps.tolist(), 0.025)
        print(f"  {cell.recipe:<18} gap {half.text()} sd {gaps.std(ddof=1):.3%} n {len(gaps)}: {' '.join(seen)}")
    if not total:
        raise SystemExit("no repeat has all the seeds that it asks for")
    upper = 1 - 0.05 ** (1 / total) if red == 0 else float("nan")
    print(
        f"{red} of {total} repeats red" + (f"; the rate is below {upper:.1%} with 95% confidence" if red == 0 else "")
    )
>>>>>>> main


if __name__ == "__main__":
    main()
