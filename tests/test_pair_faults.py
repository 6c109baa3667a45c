"""Sound pairs of logs are accepted, and none with one planted fault is. Faults that were once misjudged have their verdict."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from curves import exit_code, judge, run
from fp8parity.judging.pair import PairOptions
from fp8parity.judging.verdict import Verdict
from fp8parity.runs.run import INCOMPLETE, Run

Rng = np.random.Generator
Pair = tuple[Run, Run]
COUNT = 75
SHORT = next(seed for seed in range(100) if np.random.default_rng(seed).choice([110, 200, 400]) == 110)


def sound(seed: int, batches: int = 0) -> Pair:
    """Make a pair that shares its ``batches``: a loss that decays, and deviations of FP8 of 0.01% to 0.1%."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice([110, 200, 400]))
    at, deviation = np.arange(n), 10 ** rng.uniform(-4, -3)
    clean = rng.uniform(2, 3.5) + rng.uniform(3, 7) * np.exp(-at / (n * rng.uniform(0.1, 0.3)))
    bf16 = clean * (1 + np.random.default_rng([seed, batches]).normal(0, rng.uniform(0.01, 0.03), n))
    fp8 = bf16 * (1 + rng.normal(0, deviation, n))
    norms = rng.uniform(0.9, 1.1, n) + 2 * np.exp(-at / 20)
    rates = {"learning_rate": (1e-3 * np.minimum(1, (at + 1) / 20)).tolist()}
    own = (norms * (1 + rng.normal(0, 0.02, n))).tolist()
    return run(bf16.tolist(), grad_norm=norms.tolist(), **rates), run(fp8.tolist(), "fp8", grad_norm=own, **rates)


def changed(fp8: Run, **series: Any) -> Run:
    return fp8.model_copy(update={name: np.asarray(x).tolist() for name, x in series.items()})


def start(rng: Rng, fp8: Run, last: int = 1) -> int:
    return int(rng.integers(0, len(fp8.points) - last + 1))


def diverge(rng: Rng, fp8: Run) -> Run:
    kind = rng.integers(5)
    at, loss = start(rng, fp8, 12 if kind > 2 else 1), np.array(fp8.loss)
    after = np.arange(len(loss) - at)
    new = [
        7.5 * (1 + 0.01 * rng.normal(size=len(after))),
        loss[0] * (1 + 0.01 * rng.normal(size=len(after))),
        loss[at:] * rng.uniform(1.1, 5),
        loss[at:] * (1 + 0.01 * after),
        loss[at:] * 1.05 ** np.minimum(after, 60),
    ][kind]
    loss[at:] = np.maximum(new, loss[at:] * 1.01)
    return changed(fp8, loss=loss)


def lose_finite(rng: Rng, fp8: Run) -> Run:
    name, at = ("loss", "grad_norm")[rng.integers(2)], start(rng, fp8)
    stop = at + 1 if rng.integers(2) else len(fp8.points)
    values = np.array(getattr(fp8, name))
    values[at:stop] = (math.nan, math.inf)[rng.integers(2)]
    places = "not_finite" if name == "loss" else "norm_not_finite"
    return changed(fp8, **{name: values, places: fp8.points[at:stop]})


def kept(fp8: Run, there: np.ndarray) -> Run:
    names = ("points", "loss", "grad_norm", "learning_rate")
    return changed(fp8, **{name: np.array(getattr(fp8, name))[there] for name in names})


def stop_early(rng: Rng, fp8: Run) -> Run:
    n = len(fp8.points)
    return kept(fp8, np.arange(n) < n - rng.integers(1, n // 2))


def leave_holes(rng: Rng, fp8: Run) -> Run:
    there, n = np.ones(len(fp8.points), bool), len(fp8.points)
    length, at = int(rng.integers(1, n // 4)), start(rng, fp8, 2)
    there[[at, *rng.integers(0, n - 1, length)] if rng.integers(2) else slice(at, min(n - 1, at + length))] = False
    return kept(fp8, there)


def scale_norm(rng: Rng, fp8: Run) -> Run:
    norms, factor = np.array(fp8.grad_norm), rng.choice([0.0, rng.uniform(0.05, 0.6), rng.uniform(1.8, 10)])
    norms[start(rng, fp8) :] *= factor
    return changed(fp8, grad_norm=norms)


def splice(seed: int) -> Run:
    """Give a part of at least a third the losses of other batches."""
    rng, (_, fp8), (_, other) = np.random.default_rng([seed, 2]), sound(seed), sound(seed, batches=1)
    at = start(rng, fp8, len(fp8.points) // 3)
    stop = int(rng.integers(at + len(fp8.points) // 3, len(fp8.points) + 1))
    return changed(fp8, loss=[*fp8.loss[:at], *other.loss[at:stop], *fp8.loss[stop:]])


def skip_steps(rng: Rng, fp8: Run) -> Run:
    return fp8.model_copy(update={"skipped": int(rng.integers(1, 9))})


FAULTS = (diverge, lose_finite, stop_early, leave_holes, scale_norm, skip_steps)


def verdict(pair: Pair, **options: Any) -> Verdict:
    return judge([pair[0]], [pair[1]], PairOptions(**options))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_pair_with_one_planted_fault_is_accepted(fault: Callable[[Rng, Run], Run]):
    for seed in range(COUNT):
        bf16, fp8 = sound(seed)
        v = verdict((bf16, fault(np.random.default_rng([seed, 1]), fp8)))
        assert exit_code(v) != 0, (seed, v.headline)


def test_no_pair_with_losses_of_another_run_is_accepted():
    for seed in range(COUNT):
        v = verdict((sound(seed)[0], splice(seed)))
        assert exit_code(v) != 0, (seed, v.headline)


def spike(pair: Pair, rng: Rng) -> Pair:
    loss = np.array(pair[1].loss)
    at = int(rng.integers(len(loss) - 15))
    loss[at : at + 5] *= rng.uniform(1.5, 3)
    return pair[0], changed(pair[1], loss=loss)


@pytest.mark.parametrize("spiked", [False, True])
def test_sound_pairs_are_accepted_also_with_one_spike(spiked):
    for seed in range(COUNT):
        pair = sound(1000 + seed)
        v = verdict(spike(pair, np.random.default_rng(seed)) if spiked else pair)
        assert (v.status, "comes back" in v.headline) == ("pass", spiked), (seed, v.headline)


def with_loss(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Pair], Pair]:
    return lambda pair: (pair[0], changed(pair[1], loss=change(np.array(pair[1].loss))))


def flat(pair: Pair) -> Pair:
    """A BF16 that learned nothing, and an FP8 that follows it."""
    fp8 = 10.4 * np.array(pair[1].loss) / np.array(pair[0].loss)
    noise = 1 + np.random.default_rng(0).normal(0, 5e-4, len(fp8))
    return changed(pair[0], loss=10.4 * noise), changed(pair[1], loss=fp8 * noise)


def from_step(at: int, loss: float) -> Callable[[Pair], Pair]:
    noise = 1 + np.random.default_rng(at).normal(0, 0.01, 110)
    return with_loss(lambda x: np.where(np.arange(110) < at, x, loss * noise))


def swapped(pair: Pair) -> Pair:
    """BF16 diverges, and FP8 does not."""
    return tuple(from_step(66, 9.0)(pair[::-1])[::-1])  # type: ignore[return-value]


def shortened(run: Run) -> Run:
    """The same run in a log of five decimals."""
    return run.model_copy(update={"loss": np.round(run.loss, 5).tolist(), "decimals": 5})


def unquantized(begin: int, end: int) -> Callable[[Pair], Pair]:
    """FP8 is BF16 from one step to another."""
    off = slice(begin, end)
    return lambda pair: (
        pair[0],
        changed(pair[1], loss=[*pair[1].loss[:begin], *pair[0].loss[off], *pair[1].loss[end:]]),
    )


def stopped(pair: Pair) -> Pair:
    return pair[0], kept(pair[1], np.arange(110) < 90)


def with_hole(pair: Pair) -> Pair:
    return pair[0], kept(pair[1], (np.arange(110) < 40) | (np.arange(110) >= 70))


TURNED = "FP8's loss left BF16's at step {} and did not come back: +"
CASES = [
    (from_step(66, 7.5), {}, 1, TURNED.format(67)),
    (from_step(1, 11.0), {}, 2, "FP8's loss is not BF16's from step 2 on: it diverged, or weights or batches differ"),
    (swapped, {}, 2, "BF16's own loss rose at step 67 and did not come back"),
    (with_loss(lambda x: np.where(abs(np.arange(110) - 72) < 3, 3 * x, x)), {}, 0, "from step 71 to 75 and comes back"),
    (
        with_loss(lambda x: np.where(np.arange(110) < 30, 1.1 * x, x)),
        {},
        2,
        "the gap is outside 2% at 30 of 110 points",
    ),
    (with_loss(lambda x: np.where(np.arange(110) < 108, x, 1.01 * x)), {}, 2, "from step 109 on, too near the end"),
    (lambda pair: (pair[0], shortened(pair[0])), {}, 1, "the losses equal BF16's to the bit: nothing was quantized"),
    (unquantized(50, 110), {}, 2, "60 losses in a row, to step 110, equal BF16's to the bit"),
    (unquantized(20, 31), {}, 2, "11 losses in a row, to step 31, equal BF16's to the bit"),
    (unquantized(20, 30), {}, 0, "consistent with parity"),
    (flat, {}, 2, "BF16 learned too little to judge a recipe: its loss fell from 10.4"),
    (stopped, {"until": 90}, 2, "FP8 ends at step 90, and the other run goes on to 110"),
    (with_hole, {}, 2, "FP8 has no loss at 30 points that BF16 has, from step 41 on"),
    (with_hole, {"incomplete": True}, 0, "30 points are missing in FP8's log"),
    (lambda pair: pair, {"until": 100}, 0, "judged up to 100 only"),
    (lambda pair: pair, {"spread": 0.0003}, 0, "noise between seeds assumed 0.03% (--spread), not measured"),
]


@pytest.mark.parametrize(("change", "options", "code", "says"), CASES)
def test_first_sentence_says_what_decided(change, options, code, says):
    v = verdict(change(sound(SHORT)), **options)
    assert (exit_code(v), says in v.headline) == (code, True), v.headline


def test_run_without_its_last_line_may_be_one_point_shorter():
    bf16, fp8 = sound(SHORT)
    shorter = kept(fp8, np.arange(110) < 109)
    cut = shorter.model_copy(update={"notes": [f"1 {INCOMPLETE}"]})
    assert [exit_code(verdict((bf16, run))) for run in (shorter, cut)] == [2, 0]
