"""How often a clean recipe is called red: judge repeats with fresh seeds, from a records folder of ``train_many.py``.

    python benchmarks/train_many.py --seeds 100-129 --workers 2 --records /tmp/fresh
    python benchmarks/false_alarms.py /tmp/fresh

Each repeat takes the next seeds as the escalation asks for them, their BF16 runs as golden, and the tolerance rows of
golden/. The spread of a seed's gap is printed beside it. No torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from fp8parity import judge_loss, statistics, tolerances
from fp8parity.golden import Golden, from_runs
from fp8parity.judge import Verdict
from fp8parity.record import Trajectory
from fp8parity.storage import load_records
from fp8parity.tolerances import LossRow, Tolerances


def _repeat(mine: list[Trajectory], controls: dict[int, Trajectory], golden: Golden, row: LossRow, table: Tolerances) -> Verdict | None:
    """The verdict of one session on the first seeds, or None where the records end before the escalation does."""
    for look in row.seeds:
        if len(mine) < look:
            return None
        part = mine[:look]
        paired = [controls[r.seed] for r in part]
        verdict = judge_loss.loss_parity(part, paired, golden, row, table, last_look=look == row.seeds[-1])
        if verdict is not None:
            return verdict
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    table = tolerances.load(args.golden_dir / "tolerances.toml")
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory)]
    controls = {r.seed: r for r in runs if r.cell.recipe == "bf16"}
    golden = from_runs(list(controls.values()), [])
    tail = int(golden.schedule["tail"])
    total, red = 0, 0
    print(f"{golden.model}: {len(controls)} BF16 seeds, {golden.provenance.line()}")
    for cell in sorted({r.cell for r in runs if r.cell.recipe != "bf16"}, key=lambda c: c.id):
        mine = sorted((r for r in runs if r.cell == cell and r.seed in controls), key=lambda r: r.seed)
        gaps = np.array(statistics.relative_gaps([r.loss for r in mine], [controls[r.seed].loss for r in mine], tail))
        row, seen = table.loss_row(cell), []
        while (verdict := _repeat(mine, controls, golden, row, table)) is not None:
            assert verdict.gap is not None
            seen.append(f"{verdict.status}/{verdict.gap.n}")
            mine = mine[verdict.gap.n :]
        total, red = total + len(seen), red + sum(not s.startswith(("pass", "improved")) for s in seen)
        half = statistics.mean_interval(gaps.tolist(), 0.025)
        print(f"  {cell.recipe:<18} gap {half.text()} sd {gaps.std(ddof=1):.3%} n {len(gaps)}: {' '.join(seen)}")
    upper = 1 - 0.05 ** (1 / total) if red == 0 else float("nan")
    print(f"{red} of {total} repeats red" + (f"; the rate is below {upper:.1%} with 95% confidence" if red == 0 else ""))


if __name__ == "__main__":
    main()
