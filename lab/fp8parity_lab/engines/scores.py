"""Compare two sets of log-probabilities of the same tokens, with intervals. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from fp8parity.judging import stats

Floats = npt.NDArray[np.float64]

RESAMPLES, LEVEL = 1000, 0.95
"""Resamples of whole sequences, and the level of an interval."""
AT_ONCE = 2**22
"""Resampled tokens that are in memory together."""
NARROW, WIDE = (0.9, 1.1), (0.8, 1.25)
"""Bands of the importance ratio."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities of tokens by sequence.

    ``logprobs``: FP64, one array a sequence. ``top``: the most likely token at each place, or none. ``tokens``: what
    was scored. ``steps``: the training step of each sequence, or none.
    """

    tokens: Sequence[npt.NDArray[np.int64]]
    logprobs: Sequence[Floats]
    top: Sequence[npt.NDArray[np.int64]] = ()
    steps: Sequence[int] = ()


@dataclass(frozen=True)
class Difference:
    """Trainer minus engine at each token, of all sequences in a row.

    ``owner`` [tokens] is the sequence of a token, and ``flips`` says where the most likely tokens differ.
    """

    delta: Floats
    owner: npt.NDArray[np.int64]
    flips: npt.NDArray[np.bool_] | None = None

    @property
    def sequences(self) -> int:
        return int(self.owner[-1]) + 1

    @property
    def per_token(self) -> dict[str, Floats]:
        """The values whose means are numbers. k3 is exp(d) - 1 - d (Schulman, "Approximating KL divergence")."""
        d, ratio = self.delta, np.exp(np.minimum(self.delta, 700.0))
        outside = {
            name: ((ratio < low) | (ratio > high)).astype(np.float64)
            for name, (low, high) in ((OUTSIDE[0], NARROW), (OUTSIDE[1], WIDE))
        }
        flips = {} if self.flips is None else {FLIPS: self.flips.astype(np.float64)}
        return {MEAN: np.abs(d), K3: np.maximum(ratio - 1 - d, 0.0), **outside, **flips}


MEAN, P99, K3, OUTSIDE, FLIPS = "mean |d|", "p99 |d|", "k3", ("ratio off 10%", "ratio off 20%"), "top-1 flips"
NAMES = (MEAN, P99, K3, *OUTSIDE, FLIPS)
"""The numbers of a pair."""


class Number(NamedTuple):
    """A number with its interval over sequences."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Numbers:
    """The numbers of a pair by name, and their resamples."""

    found: Mapping[str, Number]
    resamples: Mapping[str, Floats]


def difference(trainer: Scores, engine: Scores) -> Difference:
    """Return trainer minus engine. Raises ``ValueError`` with the sequence that has no counterpart."""
    check(trainer, engine)
    delta = np.concatenate([a - b for a, b in zip(trainer.logprobs, engine.logprobs, strict=True)])
    owner = np.repeat(np.arange(len(trainer.logprobs)), [len(x) for x in trainer.logprobs])
    both = trainer.top and engine.top
    flips = np.concatenate([a != b for a, b in zip(trainer.top, engine.top, strict=True)]) if both else None
    return Difference(delta, owner, flips)


def check(trainer: Scores, engine: Scores) -> None:
    """Raise ``ValueError`` if two sets are not of the same tokens."""
    if len(trainer.tokens) != len(engine.tokens):
        raise ValueError(
            f"the trainer has {len(trainer.tokens)} sequences and the engine {len(engine.tokens)}; give the same ones"
        )
    for i, (a, b) in enumerate(zip(trainer.tokens, engine.tokens, strict=True)):
        if len(a) != len(b):
            raise ValueError(f"sequence {i}: {len(a)} tokens in the trainer's log and {len(b)} in the engine's")
        if (a != b).any():
            at = int(np.argmax(a != b))
            raise ValueError(f"sequence {i}: token {at} is {a[at]} in the trainer's log and {b[at]} in the engine's")
    for i, (one, other) in enumerate(zip(trainer.steps, engine.steps, strict=False)):
        if one != other:
            raise ValueError(f"sequence {i}: step {one} in the trainer's log and {other} in the engine's")


def draws(sequences: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return how often each sequence is in each resample, int64 [RESAMPLES, sequences]."""
    return np.random.default_rng(seed).multinomial(sequences, np.full(sequences, 1 / sequences), RESAMPLES)


def numbers(pair: Difference, seed: int = 0, level: float = LEVEL) -> Numbers:
    """Return the numbers of a pair with percentile intervals over whole sequences.

    Two pairs of one ``seed`` and as many sequences have the same resamples.
    """
    if pair.sequences < 2:
        raise ValueError(f"{pair.sequences} sequence: an interval over sequences needs at least 2")
    weights, sizes = draws(pair.sequences, seed), np.bincount(pair.owner)
    total = weights @ sizes
    values = {name: float(x.mean()) for name, x in pair.per_token.items()}
    resampled = {n: weights @ np.bincount(pair.owner, x, len(sizes)) / total for n, x in pair.per_token.items()}
    size = np.abs(pair.delta)
    values[P99] = float(np.quantile(size, 0.99, method="inverted_cdf"))
    resampled[P99] = _quantiles(size, pair.owner, weights, 0.99)
    found = {n: Number(values[n], *_interval(resampled[n], level)) for n in NAMES if n in values}
    return Numbers(found, resampled)


def _interval(values: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _quantiles(values: Floats, owner: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], at: float) -> Floats:
    """Return the weighted quantile of ``values`` in each resample of their owners."""
    order = np.argsort(values)
    ordered, owners = values[order], owner[order]
    parts = np.array_split(weights, max(1, math.ceil(len(weights) * len(values) / AT_ONCE)))
    found = [np.argmax((sums := part[:, owners].cumsum(1)) >= at * sums[:, -1:], axis=1) for part in parts]
    return np.asarray(ordered[np.concatenate(found)])


class Compared(NamedTuple):
    """A number next to its baseline's, with the interval of the excess over ``allowed`` times the baseline."""

    name: str
    number: Number
    baseline: Number
    excess: Number

    @property
    def worse(self) -> bool:
        return self.excess.low > 0


def above(pair: Numbers, baseline: Numbers, allowed: float = 1.0) -> list[Compared]:
    """Compare numbers with ``allowed`` times the baseline's.

    The numbers share an error rate of 5%, so the interval of each excess has a higher level (Bonferroni).
    """
    names = [name for name in pair.found if name in baseline.found]
    rows = []
    for name in names:
        own, other = pair.found[name], baseline.found[name]
        spread = pair.resamples[name] - allowed * baseline.resamples[name]
        interval = _interval(spread, 1 - (1 - LEVEL) / len(names))
        rows.append(Compared(name, own, other, Number(own.value - allowed * other.value, *interval)))
    return rows


@dataclass(frozen=True)
class Trend:
    """The slope of mean |d| per 100 training steps, with its 95% interval."""

    first: float
    last: float
    steps: int
    slope: Number

    @property
    def word(self) -> str:
        return "rising" if self.slope.low > 0 else "falling" if self.slope.high < 0 else "flat"


def trend(pair: Difference, steps: Sequence[int]) -> Trend:
    """Return the trend of mean |d| over training steps: least squares of the means of steps, Student's interval.

    Raises ``ValueError`` for fewer than four different steps.
    """
    step_of = np.asarray(steps)[pair.owner]
    known = np.unique(step_of)
    if len(known) < 4:
        raise ValueError(f"{len(known)} different steps: a trend needs at least 4")
    means = np.array([np.abs(pair.delta[step_of == s]).mean() for s in known])
    x = (known - known.mean()) / 100
    slope = float(x @ (means - means.mean()) / (x @ x))
    rest = means - means.mean() - slope * x
    half = stats.student(0.5 + LEVEL / 2, len(known) - 2) * math.sqrt(rest @ rest / (len(known) - 2) / (x @ x))
    return Trend(float(means[0]), float(means[-1]), len(known), Number(slope, slope - half, slope + half))


def matrix(
    trainers: Mapping[str, Scores], engines: Mapping[str, Scores], begin: Callable[[str], None] = lambda _: None
) -> dict[tuple[str, str], Numbers]:
    """Return the numbers of every pair of trainer and engine."""
    found = {}
    for trainer, own in trainers.items():
        begin(f"pairs of {trainer}")
        for engine, other in engines.items():
            found[trainer, engine] = numbers(difference(own, other))
    return found
