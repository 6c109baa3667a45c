"""Made-up runs of BF16 and of recipes with the same weights and batches, and their golden. For tests of what happens along runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from fp8parity.judging import loss
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.policy.thresholds import Threshold
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from trajectories import OTHER_NORM

Make = Callable[..., Trajectory]
STEPS, TAIL, SEEDS = 160, 40, range(3)
ROW = LossRow(
    margin=0.001, seeds=(3,), bf16_margin=2e-4, min_step_band=5e-4, min_norm_band=0.02, min_context_learned=0.5,
    why="made-up runs with a noise of 0.01%",
)  # fmt: skip


def runner(trajectory: Make) -> Make:
    """Makes a run of 160 steps whose losses are those of its seed plus noise of 0.01% per window, with a ``change`` (steps -> factor)."""

    def make(
        recipe: str = "bf16", seed: int = 0, noise: int = 0, change: np.ndarray | float = 0.0, **more: object
    ) -> Trajectory:
        base = trajectory(recipe, seed)
        clean = np.linspace(5.0 + 0.01 * seed, 3.5, STEPS)
        jitter = np.repeat(np.random.default_rng([noise, seed]).normal(0, 1e-4, STEPS // 8), 8) if noise else 0.0
        values = clean * (1 + jitter) * (1 + change)
        last = float(values[-1])
        given = {
            "loss": values.tolist(),
            "grad_norm": (np.full(STEPS, 2.0) * (1 + 10 * jitter) + OTHER_NORM * values).tolist(),
            "validation": [(STEPS - 1, last)],
        }
        given |= {"schedule": base.schedule | {"steps": STEPS, "tail": TAIL}, "unigram": 5.0, "bigram": 4.0}
        return base.model_copy(update=given | more)

    return make


def golden_of(run: Make) -> Golden:
    """BF16 of three seeds with two replicas each, and the spread of four sound recipes."""
    control = [run(seed=s) for s in SEEDS]
    replicas = [run(seed=s, noise=k, change=0.0, variant=f"replica{k}") for s in SEEDS for k in (1, 2)]
    quiet = [
        r.model_copy(update={"loss": (np.asarray(r.loss) * 0.1 + np.asarray(c.loss) * 0.9).tolist()})
        for r in replicas
        for c in control
        if c.seed == r.seed
    ]
    made = from_runs([*control, *quiet], [])
    return spreads.add_noise(made, [(run("te-current", s, noise=3), run(seed=s)) for s in range(100, 124)], window=8)


def judged(
    golden: Golden,
    runs: Sequence[Trajectory],
    controls: Sequence[Trajectory],
    tmp_path: Path = Path("policy.toml"),
    row: LossRow = ROW,
    thresholds: Sequence[Threshold] = (),
) -> Verdict:
    """The verdict by a row and by the shipped thresholds with these after them."""
    rules = Policy(path=tmp_path, loss=(row,))
    rules = rules.model_copy(update={"threshold": (*rules.threshold, *thresholds)})
    return loss.judge(runs, controls, golden, rules, MeasuredNumbers())


def at(start: int, stop: int, value: float) -> np.ndarray:
    """A change of some steps only."""
    found = np.zeros(STEPS)
    found[start:stop] = value
    return found
