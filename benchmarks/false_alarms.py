"""How often a clean recipe is called red: judge repeats with fresh seeds, from a records folder of ``train_many.py``.

    python benchmarks/train_many.py --seeds 100-129 --workers 2 --records /tmp/fresh
    python benchmarks/false_alarms.py /tmp/fresh

Each repeat takes the next seeds as the escalation asks for them, their BF16 runs as golden, and the policy of golden/. The step
bands rest on the records' other seeds, never on those that are judged. The spread of a seed's gap is printed beside it. No torch.
"""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

import numpy as np
from fp8parity.judging import policy, references, stats
from fp8parity.judging.evaluate import evaluate, looks
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records


def _repeat(
    mine: list[Trajectory], controls: dict[int, Trajectory], stored: Goldens, rules: Policy, paired: list[spreads.Pair]
) -> Verdict | None:
    """The verdict of one session on the first seeds, or None where the records end before the escalation does."""
    counts = looks(mine[0].cell, stored, rules) if mine else ()
    for count in counts:
        if len(mine) < count:
            return None
        part = mine[:count]
        others = _other_seeds(stored, rules, part, paired)
        [found] = evaluate([*part, *(controls[r.seed] for r in part)], others, rules)
        verdict = next(v for v in found.verdicts if v.cell == part[0].cell)
        if verdict.status != "inconclusive" or count == counts[-1]:
            return verdict
    return None


def _other_seeds(stored: Goldens, rules: Policy, part: list[Trajectory], paired: list[spreads.Pair]) -> Goldens:
    """The goldens with the spread of recipes that share this one's row, without the seeds that are judged."""
    row, judged = rules.loss_row(part[0].cell), {r.seed for r in part}
    found = [(run, control) for run, control in paired if run.seed not in judged and rules.loss_row(run.cell) == row]
    loss = {key: spreads.with_spread(golden, found, row.window) for key, golden in stored.loss.items()}
    return Goldens(loss, numbers=stored.numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    rules = policy.load(args.golden_dir, datetime.date.today()).model_copy(update={"known": None})
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory)]
    controls = {r.seed: r for r in runs if r.cell.is_control}
    if len(controls) < 2:
        raise SystemExit(f"{args.records} holds {len(controls)} seeds of BF16; 2 are needed")
    golden = from_runs(list(controls.values()), [])
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


if __name__ == "__main__":
    main()
