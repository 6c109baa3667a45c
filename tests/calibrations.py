"""Made-up runs of a calibration, whose gaps to BF16 are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from fp8parity.records.schema import Trajectory

STEPS, TAIL = 80, 16
SEEDS = (0, 1, 2)
Make = Callable[..., Trajectory]


def maker(trajectory: Make) -> Make:
    """Makes a run of 80 steps whose gap to BF16 is ``gap`` at every step, plus ``early`` in the second window."""

    def make(
        name: str = "", seed: int = 0, gap: float = 0.0, early: float = 0.0, end: float = 3.0, **changes: object
    ) -> Trajectory:
        base = trajectory("te-current" if name == "recipe" else "bf16", seed)
        loss = np.linspace(4.0 + 0.01 * seed, end, STEPS) * (1 + gap)
        loss[8:16] *= 1 + early
        given = {
            "loss": loss.tolist(),
            "schedule": base.schedule | {"steps": STEPS, "tail": TAIL},
            "unigram": 4.0,
            "bigram": 3.4,
        }
        return base.model_copy(update=given | {"variant": "" if name == "recipe" else name} | changes)

    return make


def standard(run: Make, **faults: tuple[float, float]) -> list[Trajectory]:
    """BF16, two replicas with gaps of 1e-6, a recipe with gaps of -1e-4, 0 and 1e-4, and faults (tail gap, early gap)."""
    found = []
    for s in SEEDS:
        found += [
            run(seed=s),
            run("replica1", s, 1e-6),
            run("replica2", s, -1e-6 * s),
            run("recipe", s, 1e-4 * (s - 1)),
        ]
        found += [run(name.replace("_", " "), s, gap, early) for name, (gap, early) in faults.items()]
    return found
