"""Print how far sound runs lie from their own recipe and from other recipes, by their first steps.

usage: python lab/benchmarks/likenesses.py [SET ...]   (default: all of golden/records but found/)

A run that the golden holds is compared with the other runs of the golden only.
"""

from __future__ import annotations

import datetime
import sys
from collections import defaultdict
from pathlib import Path

from fp8parity.judging import identity, policy, references
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.sound_runs import SoundRun
from fp8parity.records import sets
from fp8parity.records.schema import Trajectory

GOLDEN = Path(__file__).parents[2] / "golden"


def without(golden: Golden, run: Trajectory, control: Trajectory) -> Golden:
    """Return the golden without this run."""
    noise = [
        n.model_copy(update={"runs": [r for r in n.runs if r != SoundRun.of(run, control, n.window)]})
        for n in golden.noise
    ]
    return golden.model_copy(update={"noise": noise})


def main(paths: list[Path]) -> None:
    """Print the extreme distances, and which pairs of recipes lie too near each other."""
    goldens, rules = references.load(GOLDEN), policy.load(GOLDEN, datetime.date.today())
    own: dict[str, list[tuple[float, str]]] = defaultdict(list)
    others: dict[str, list[tuple[float, str]]] = defaultdict(list)
    pairs: dict[tuple[str, str, str], list[bool]] = defaultdict(list)
    for machine in (m for path in paths for m in sets.machines(sets.load([path]))):
        for cell, runs in machine.runs.items():
            golden = goldens.loss.get((cell.model, cell.corpus))
            for run in (r for r in runs if golden and not (cell.is_control or r.non_finite or golden.stale(r))):
                control = machine.control(run)
                if not golden or not control:
                    continue
                found = identity.likenesses([run], [control], without(golden, run, control), rules)
                for trait, like in (
                    (t.name, x) for t, likes in zip(identity.TRAITS, found, strict=False) for x in likes
                ):
                    name = f"{cell.id} seed {run.seed}"
                    own[trait].append((like.share, name))
                    others[trait] += [(like.away(n) / d, f"{name}, {n}") for n, d in like.apart.items()]
                    for n in like.others:
                        pairs[trait, min(cell.recipe, n), max(cell.recipe, n)].append(n in like.apart)
    for trait in own:
        print(f"{trait}: {len(own[trait])} runs, furthest from their own: {max(own[trait])}")
        print(f"{trait}: {len(others[trait])} pairs of a run and another recipe, nearest: {min(others[trait])}")
        shares = {key[1:]: sum(seen) / len(seen) for key, seen in pairs.items() if key[0] == trait}
        print(f"{trait}: {sum(x == 1 for x in shares.values())} of {len(shares)} pairs of recipes differ in every seed")
        print("\n".join(f"  {a} {b}: in {x:.0%} of seeds" for (a, b), x in sorted(shares.items()) if x < 1))


if __name__ == "__main__":
    main([Path(p) for p in sys.argv[1:]] or [p for p in (GOLDEN / "records").rglob("*.zip") if "found" not in p.parts])
