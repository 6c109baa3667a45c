"""Print how far sound runs lie from BF16, and their validations and first gradients from the golden's.

usage: python lab/benchmarks/distances.py [SET ...]   (default: all of golden/records but found/)

Validations are in units of their limits. A run that the golden holds is compared with its other sound runs only.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import numpy as np
from fp8parity.judging import identity, policy, references, stats, tolerances
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.sound_runs import SoundRun
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory

GOLDEN = Path(__file__).parents[2] / "golden"


def main(paths: list[Path]) -> None:
    """Print the smallest distances and the largest validation gaps of all runs that end."""
    goldens, rules = references.load(GOLDEN), policy.load(GOLDEN, datetime.date.today())
    shares: list[tuple[float, str]] = []
    steps: list[tuple[float, str]] = []
    gaps: dict[str, list[tuple[float, str]]] = {"early": [], "last": []}
    first: dict[str, list[tuple[float, str]]] = {}
    for path, machine in ((p, m) for p in paths for m in sets.machines(sets.load([p]))):
        for cell, runs in machine.runs.items():
            golden = goldens.loss.get((cell.model, cell.corpus))
            for run in (r for r in runs if golden and not r.non_finite and not golden.stale(r)):
                assert golden
                name, control, seed = f"{cell.id} seed {run.seed}", machine.control(run), golden.seed(run.seed)
                if control and not cell.is_control:
                    distance, unit = identity.distance(run, control, golden)
                    (shares if unit == identity.OF_NOISE else steps).append((distance, name))
                    off = _from_other_runs(golden, run, control)
                    if off is not None:
                        place = path.stem if "upgrades" in path.parts else f"{cell.execution} {cell.recipe}"
                        first.setdefault(place, []).append((float(np.linalg.norm(off)), name))
                if seed:
                    row, limits_of = rules.loss_row(cell), rules.thresholds(cell)
                    limits = tolerances.recipe_limits(golden, cell.recipe, row, limits_of)
                    if cell.is_control:
                        limits = tolerances.control_limits(golden, row, limits_of)
                    last = limits.validations.half[-1]
                    found = np.array([v for _, v in run.validation]) / np.array(seed.mean_validation) - 1
                    gaps["early"] += [(float(abs(g) / last), name) for g in found[:-1]]
                    gaps["last"].append((float(abs(found[-1]) / last), name))
    for what, values in (("of the noise", shares), ("a step, without measured noise", steps)):
        print(f"distance from BF16 {what}: {len(values)} runs, smallest {min(values)}")
    for what, values in gaps.items():
        print(f"{what} validations, in half-widths of the last one: {len(values)}, largest {max(values)}")
    for what, values in sorted(first.items()):
        print(f"first gradients, shares of the recipe's gap, {what}: {len(values)}, largest {max(values)}")


def _from_other_runs(golden: Golden, run: Trajectory, control: Trajectory) -> stats.Floats | None:
    """Return how far first gradients are from the golden's sound runs without this one."""
    noise = golden.noise_of(run.cell.recipe)
    if noise is None:
        return None
    own = SoundRun.of(run, control, noise.window)
    return noise.model_copy(update={"runs": [r for r in noise.runs if r != own]}).first_gradients_off(own)


if __name__ == "__main__":
    main([Path(p) for p in sys.argv[1:]] or [p for p in (GOLDEN / "records").rglob("*.zip") if "found" not in p.parts])
