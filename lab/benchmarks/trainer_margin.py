"""Measure how far FP8 moves the tail gap of a sound program: the ``min_margin`` of trainers. No torch.

    python lab/benchmarks/trainer_margin.py

It takes each recipe of 8 bits of all committed sets of short runs (tail of a fifth or more), three seeds at a time, as
a gate of three seeds does. The end of an interval that is furthest from zero is what a margin must hold. Sessions that
are equal to the bit count once. Models in which BF16's replicas lie further apart than QUIET are counted apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fp8parity.judging import stats
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.noise import pairs
from fp8parity.judging.references.store import load
from fp8parity.judging.table import Allowed
from fp8parity.judging.tolerances import replica_prior
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import load_records
from scipy.stats import binomtest

ROOT = Path(__file__).parents[2]
SEEDS, ALPHA, QUIET, MAX_STEPS, FLOOR, MARGIN = 3, 0.05, 1e-4, 1000, 0.0015, 0.005
FOUR_BITS, COLD = "te-nvfp4", ("1b", "te-delayed")
"""Recipes of four bits begin with the first; the second, of cold scales at 60 steps, has a margin of its own."""


class Session(NamedTuple):
    """The furthest end of the interval of three seeds, how well BF16 repeats, and where the margin puts the gap."""

    end: float
    model: str
    recipe: str
    noise: float
    place: str


def sessions() -> Iterator[Session]:
    """Yield each session of three seeds of a recipe, relative to BF16 of its machine."""
    folders = [ROOT / "golden", *sorted((ROOT / "examples" / "trainers").glob("*/golden"))]
    goldens = {key: golden for folder in folders for key, golden in load(folder, Golden).items()}
    paths = [*(ROOT / "examples" / "trainers").glob("*/records*.zip"), *(ROOT / "golden" / "records").glob("*.zip")]
    for path in sorted(paths):
        found: dict[tuple[str, str, str, str], list[tuple[int, float]]] = {}
        for run, control in pairs(r for r in load_records(path) if isinstance(r, Trajectory)):
            tail, cell = int(run.tail), run.cell
            short = run.steps <= min(MAX_STEPS, 5 * tail) and len(run.loss) == len(control.loss) == run.steps
            if short and not cell.recipe.startswith(FOUR_BITS) and (cell.model, cell.recipe) != COLD:
                gap = stats.relative_gaps([run.loss], [control.loss], tail)[0]
                device = f"{cell.execution} {run.provenance.device}"
                found.setdefault((cell.model, cell.corpus, cell.recipe, device), []).append((run.seed, gap))
        for (model, corpus, recipe, _), gaps in found.items():
            golden = goldens.get((model, corpus))
            noise = replica_prior(golden) if golden else None
            ordered = [gap for _, gap in sorted(gaps)]
            for k in range(0, len(ordered) - SEEDS + 1, SEEDS):
                interval = stats.mean_interval(ordered[k : k + SEEDS], ALPHA)
                if noise:
                    margin = min(MARGIN, max(FLOOR, stats.resolution(SEEDS, noise.sd, ALPHA, 0)))
                    place = Allowed.within(margin).place(interval.low, interval.high)
                    yield Session(max(-interval.low, interval.high), model, recipe, noise.sd, place)


def main() -> None:
    each = sorted({(s.model, round(s.end, 9)): s for s in sessions()}.values(), reverse=True)
    quiet, noisy = ([s for s in each if (s.noise <= QUIET) == is_quiet] for is_quiet in (True, False))
    for name, group in {f"BF16 repeats within {QUIET:.2%}": quiet, "noisier models": noisy}.items():
        inside = sum(s.place == "inside" for s in group)
        low, high = binomtest(inside, len(group)).proportion_ci()
        print(f"{name}: {len(group)} sessions of {len({s.model for s in group})} models")
        print(f"  inside the margin: {inside}, so {low:.1%} to {high:.1%} of such sessions (95% interval)")
        print(f"  undecided: {sum(s.place == 'undecided' for s in group)}")
        print(f"  furthest: {', '.join(f'{s.end:.3%} ({s.recipe} on {s.model})' for s in group[:4])}")


if __name__ == "__main__":
    main()
