"""Made-up runs of other frameworks: a falling loss whose noise comes from the batches, so that two runs of one seed share it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict, judge
from fp8parity.judging.pair.finding import Asked
from fp8parity.runs.run import Run
from log_files import Curve, automodel

HF = Path(__file__).parent / "hf-trainer"
STEPS = 400


def curve(seed: int = 0, steps: int = STEPS, chaos: int = 0, decay_from: float = 0.0) -> Curve:
    """A BF16 run. ``chaos`` names a run of the same seed whose losses differ a little, as those of FP8 do. From the share ``decay_from`` of
    the run on, the learning rate falls."""
    noise = np.random.default_rng(seed).normal(0, 0.03, steps)
    own = np.random.default_rng(1000 + chaos).normal(0, 2e-4, steps) if chaos else np.zeros(steps)
    at = np.arange(steps)
    loss = (2.5 + 6 * np.exp(-at / 60) - 0.4 * at / steps + noise) * (1 + own)
    start = decay_from * steps
    rates = [1e-3 * (0.5 + 0.5 * math.cos(math.pi * max(0.0, s - start) / (steps - start))) for s in at]
    return Curve(loss.tolist(), np.random.default_rng(seed + 1).uniform(0.9, 1.1, steps).tolist(), rates)


def run_of(made: Curve, path: Path, write: Callable[[Path, Curve], Path] = automodel) -> Run:
    return runs.read(write(path, made))


def judged(
    folder: Path, bf16: Curve, fp8: Curve, asked: Asked | None = None, write: Callable[[Path, Curve], Path] = automodel,
    repeats: Sequence[Run] = (),
) -> PairVerdict:  # fmt: skip
    """Write both curves into a fresh part of the folder, read and judge them."""
    place = folder / f"pair{len(list(folder.iterdir()))}"
    place.mkdir()
    return judge([run_of(bf16, place / "bf16", write)], [run_of(fp8, place / "fp8", write)], asked or Asked(), repeats)


def lines(v: PairVerdict, name: str) -> str:
    return "\n".join(text for n, text in v.lines if n == name)
