"""Judge loss curves as other projects do: each rule is a pure function of runs and references. No torch.

A rule of one run takes its losses and those of its reference, in nats per token, one per step. It says whether the run
is red. The projects judge one seed. ``RULES`` applies such a rule to every seed of a cell, and the cell is red if one
seed is. So a rule gets the same runs as this project's verdict. The sources were read on 2026-11-22. The rules were
written anew from what the sources do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from fp8parity.judging import stats
from fp8parity.records.schema import Trajectory
from scipy import special

Losses = Sequence[float]


def megatron_exact(run: Losses, reference: Losses) -> bool:
    """Megatron-LM's deterministic test: red unless all values are equal.

    Source: ``tests/functional_tests/python_test_utils/common.py``.
    Values are rounded to 5 decimals. A NaN as a number is red. (A NaN as text becomes infinite on both sides, and would
    be equal.)
    """
    return not np.array_equal(np.round(run, 5), np.round(reference, 5))


def megatron_close(run: Losses, reference: Losses, *, inverted: bool = False) -> bool:
    """Apply the approximate test of the same file: a step is close within 5%.

    One step in a hundred (at least 1, at most 50) need not be close.

    ``inverted`` is the rule as it was shipped from October 2025 to April 2026: 1% of close steps was enough. A NaN is
    not close.
    """
    n = len(reference)
    allowed = min(max(n // 100, 1), 50) / n
    if len(run) != n:
        return True
    close = float(np.mean(np.isclose(np.round(run, 5), np.round(reference, 5), rtol=0.05, atol=0)))
    return close < (allowed if inverted else 1 - allowed)


@dataclass(frozen=True)
class Bridge:
    """Settings of Megatron-Bridge.

    ``skip`` is the share of first steps that is not compared, ``last`` limits the last loss.
    """

    skip: float = 0.0
    last: float = 0.03


def bridge(run: Losses, reference: Losses, settings: Bridge = Bridge()) -> bool:
    """Megatron-Bridge, ``scripts/performance/utils/evaluate.py`` (2025), ``validate_convergence``.

    Red if the correlation is below 0.95, if more than 10% of the steps are outside 10% (loss above 2), 5% (above 0.5)
    or 2%, if the last loss is off by more than ``last``, or if more than 10% of the differences lie beyond 3 sd of
    themselves. No comparison with NaN is true, so a run of NaN is green. Raises ``ValueError`` for different lengths,
    as its subtraction does.
    """
    start = int(len(run) * settings.skip)
    x, g = (np.asarray(v[start:], dtype=np.float64) for v in (run, reference))
    tolerance = np.where(g > 2, 0.10, np.where(g > 0.5, 0.05, 0.02))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.corrcoef(x, g)[0, 1]
        outside = np.mean(np.abs(x - g) / np.abs(g) > tolerance)
        difference = x - g
        outliers = np.mean(np.abs(difference - difference.mean()) > 3 * difference.std())
        last = abs(x[-1] - g[-1]) / g[-1]
    return bool(correlation < 0.95 or outside > 0.1 or last > settings.last or outliers > 0.1)


def torchtitan(run: Losses, reference: Losses) -> bool:
    """torchtitan, ``assert_losses_equal``: red unless steps and losses are equal.

    Source: ``scripts/loss_compare.py`` (2026).
    The losses are compared as FP32 numbers. A run with a NaN is red: its log has no number for the step, so the steps
    differ.
    """
    return not np.array_equal(np.asarray(run, dtype=np.float32), np.asarray(reference, dtype=np.float32))


def liger(run: Losses, reference: Losses) -> bool:
    """Liger-Kernel, ``assert_verbose_allclose`` of ``test/utils.py`` (2025): red unless every step is within 1e-2 + 5%.

    These are the limits of its BF16 convergence tests, for the loss alone. NaN on one side is red, and on both
    sides green. Its comparisons of log-probabilities and parameters need values that no record holds.
    """
    x, g = np.asarray(run), np.asarray(reference)
    if x.shape != g.shape:
        return True
    return bool(np.any((np.abs(x - g) > 1e-2 + 5e-2 * np.abs(g)) | (np.isnan(x) ^ np.isnan(g))))


REFERENCE_POINT = 0.75
"""The place in the run whose mean BF16 loss is the target of ``mlperf``. Later, some seeds of BF16 itself would not
reach it."""


def steps_to(target: float, run: Losses) -> float:
    """Return the steps until the mean loss of a window reaches ``target`` (nats per token), or infinity."""
    reached = np.flatnonzero(stats.windows(run, stats.WINDOW) <= target)
    return float((reached[0] + 1) * stats.WINDOW) if reached.size else math.inf


def mlperf(runs: Sequence[Losses], references: Sequence[Losses], *, mirrored: bool = False) -> bool:
    """MLPerf's reference convergence points (rules 3.0), adapted.

    Source: ``mlcommons/logging``, ``mlperf_logging/rcp_checker/rcp_checker.py``.

    MLPerf compares the samples until a target metric is reached. A one-sided t-test (alpha 5%, the standard deviation
    of the references for both sides) rejects runs that converge too fast. ``mirrored`` also rejects those that converge
    too slowly. More than one run that never gets there is red.

    The adaptation: the target is the mean reference loss at ``REFERENCE_POINT`` of the run, in windows of 10 steps.
    MLPerf drops the best and the worst run. Here that is done with five runs or more. It asks for twice as many
    references as runs. Here all BF16 seeds serve.
    """
    if len(references) < 2:
        return False
    curves = np.stack([stats.windows(r, stats.WINDOW) for r in references])
    target = float(curves[:, int(REFERENCE_POINT * curves.shape[1])].mean())
    own, theirs = (_trimmed([steps_to(target, r) for r in group]) for group in (runs, references))
    if np.isinf(own).sum() > 1 or np.isinf(theirs).any():
        return True
    sd = float(theirs.std())
    difference = float(own.mean() - theirs.mean())
    limit = float(special.stdtrit(len(own) + len(theirs) - 2, 0.95)) * sd * math.sqrt(1 / len(own) + 1 / len(theirs))
    return difference < -limit or (mirrored and difference > limit)


def _trimmed(values: Sequence[float]) -> stats.Floats:
    """Drop the best and the worst of five or more values."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    return ordered[1:-1] if len(ordered) >= 5 else ordered


NORM_LIMIT = 0.0829
"""Megatron-LM's limit of the relative error of a gradient tensor under another parallelism (reported in 2026; its file
was not read again for this page). It is 21.6 dB."""
SQNR_LIMIT = -20 * math.log10(NORM_LIMIT)


def megatron_gradients(run: Trajectory, reference: Trajectory) -> bool:
    """Megatron-LM's rule on gradients, in part.

    It is red if a tensor's first gradient norm differs by more than 8.29% from the reference's.

    The rule is about the norm of the difference. Records hold only norms, and the difference of two norms is at most
    the norm of the difference. So what is red here is red by the full rule; what is green here need not be green by it.
    A NaN is red.
    """
    pairs = [(run.first_gradients[k], v) for k, v in reference.first_gradients.items() if k in run.first_gradients]
    return not all(abs(x - g) <= NORM_LIMIT * g for x, g in pairs)


@dataclass(frozen=True)
class Rule:
    """A rule of another project.

    ``red`` gets the runs of a cell, their references of the same seeds, and all BF16 runs of the model.
    """

    name: str
    red: Callable[[Sequence[Trajectory], Sequence[Trajectory], Sequence[Losses]], bool]


def _each_seed(name: str, red: Callable[[Losses, Losses], bool]) -> Rule:
    return Rule(
        name, lambda runs, references, _: any(red(r.loss, g.loss) for r, g in zip(runs, references, strict=True))
    )


RULES = (
    _each_seed("Megatron-LM, exact", megatron_exact),
    _each_seed("Megatron-LM, 5%", megatron_close),
    _each_seed("Megatron-LM, 5%, as shipped 2025-10 to 2026-04", partial(megatron_close, inverted=True)),
    _each_seed("Megatron-Bridge, defaults of the function", bridge),
    _each_seed("Megatron-Bridge, defaults of the command", partial(bridge, settings=Bridge(skip=0.2, last=0.05))),
    _each_seed("torchtitan", torchtitan),
    Rule("MLPerf RCP, adapted", lambda runs, _, every: mlperf([r.loss for r in runs], every)),
    Rule(
        "MLPerf RCP, adapted, both sides", lambda runs, _, every: mlperf([r.loss for r in runs], every, mirrored=True)
    ),
    _each_seed("Liger-Kernel, loss", liger),
    Rule("Megatron-LM, gradient norms", lambda runs, references, _: any(map(megatron_gradients, runs, references))),
)
"""All rules, by the order of the tables."""
