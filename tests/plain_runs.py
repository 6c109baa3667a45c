"""Runs of two losses that were never written to a file, for tests of each question about a pair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from fp8parity.judging.pair.aligned import Aligned, align
from fp8parity.runs.run import Run


def run(losses: Sequence[float], source: str = "bf16", **changes: Any) -> Run:
    """A run that logged every step from step 1 on."""
    given = {"source": source, "format": "made up", "axis": "steps", "averaging": "of one step", "decimals": None}
    return Run.model_validate({**given, "points": list(range(1, len(losses) + 1)), "loss": list(losses), **changes})


def noisy(steps: int = 400, seed: int = 0) -> list[float]:
    """Losses of which each batch has its own."""
    return np.random.default_rng(seed).uniform(2.0, 3.0, steps).tolist()


def both(bf16: Sequence[float], fp8: Sequence[float] | None = None, **changes: Any) -> Aligned:
    """A pair of which both runs have the same changes. The losses of FP8 are BF16's unless they are given."""
    return align(run(bf16, **changes), run(bf16 if fp8 is None else fp8, "fp8", **changes))
