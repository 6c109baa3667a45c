"""How two sets of BF16 records of the same seeds differ: another thread count, another CPU, another framework version.

    python benchmarks/train_many.py --recipe bf16 --seeds 0-7 --threads 2 --workers 1 --records /tmp/two-threads
    python benchmarks/noise.py /tmp/two-threads            # against golden/

Prints the paired tail gap and the spread between seeds. No torch.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from fp8parity.judging import stats
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path)
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    args = parser.parse_args()
    runs = [r for r in load_records(args.records) if isinstance(r, Trajectory) and r.cell.is_control]
    goldens = loss_goldens.load(args.golden_dir)
    for model in sorted({r.cell.model for r in runs}):
        stored = goldens.get((model, runs[0].cell.corpus))
        if stored is None:
            raise SystemExit(f"no golden of {model}")
        pairs = [(r, s) for r in runs if r.cell.model == model and (s := stored.seed(r.seed)) is not None]
        if len(pairs) < 2:
            raise SystemExit(f"{model}: {len(pairs)} of the seeds are in the golden; 2 are needed")
        tail = stored.tail
        gaps = stats.relative_gaps([r.loss for r, _ in pairs], [s.loss for _, s in pairs], tail)
        steps = np.array([np.abs(np.array(r.loss) / np.array(s.loss) - 1) for r, s in pairs])
        between = np.array([np.mean(s.loss[-tail:]) for s in stored.seeds])
        runs_on = pairs[0][0].provenance
        print(
            f"{model}: {len(pairs)} seeds on {runs_on.line()}, {runs_on.threads} threads, against {stored.provenance.line()}"
        )
        print(f"  paired tail gap {stats.mean_interval(gaps, 0.025).text()}, sd {np.std(gaps, ddof=1):.3%}")
        print(f"  largest single step {steps.max():.2%}, mean over steps {steps.mean():.3%}")
        print(f"  equal to the bit: {sum(r.loss == s.loss for r, s in pairs)} of {len(pairs)}")
        print(f"  between seeds: tail sd {between.std(ddof=1) / between.mean():.3%}")


if __name__ == "__main__":
    main()
