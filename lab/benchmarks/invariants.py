"""Measure what sound runs have in common: ``python lab/benchmarks/invariants.py``.

It reads the committed runs. The limits of ``judging/preconditions.py``, of ``judging/pair/pairing.py`` and of BF16's
first gradients in ``golden/policy.toml`` rest on its lines.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
from fp8parity.judging.pair.pairing import longest
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import named_records

PROJECT = ("micro", "tiny", "mini", "small", "base", "1b")
SETS = sorted([*Path("golden/records").rglob("*.zip"), *Path("lab/records").glob("*.zip")])


def main() -> None:
    runs = [(path, r) for path in SETS for _, r in named_records(path) if isinstance(r, Trajectory) and not r.variant]
    off = [abs(math.hypot(*r.first_gradients.values()) / r.grad_norm[0] - 1) for _, r in runs if r.first_gradients]
    print(f"norm of all first gradients from the first step's: {max(off):.1e} at most in {len(off)} runs")

    bf16: dict[tuple[str, int, str], list[Trajectory]] = defaultdict(list)
    for _, r in runs:
        if r.cell.is_control and r.cell.model in PROJECT and r.first_gradients:
            bf16[r.cell.model, r.seed, r.initial_weights].append(r)
    apart = [
        abs(a.first_gradients[name] / norm - 1)
        for found in bf16.values()
        for a, b in combinations(found, 2)
        for name, norm in b.first_gradients.items()
    ]
    print(f"first gradients of BF16 between sessions: {max(apart):.2%} at most in {len(apart)} pairs of a parameter")

    controls = {(path, r.session, r.cell.model, r.seed): r for path, r in runs if r.cell.is_control}
    keys = [(controls.get((path, r.session, r.cell.model, r.seed)), r) for path, r in runs if not r.cell.is_control]
    equal = [np.equal(*np.array([*zip(r.loss, control.loss, strict=False)]).T) for control, r in keys if control]
    rows = [longest(found, ())[0] for found in equal]
    print(f"losses in a row that equal BF16's: {np.max(rows)} at most in {len(rows)} pairs")


if __name__ == "__main__":
    main()
