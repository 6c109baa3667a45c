"""The verdict of loss parity on thousands of simulated cells at once, in arrays. No torch.

It does what ``fp8parity.judging.loss.judge`` does with complete runs. It leaves out what simulated runs do not have: first gradients of
single parameters, hyper-parameters, inventories and stale goldens. ``tests/test_evidence.py`` holds its statuses equal to those of
``judge``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from fp8parity.judging import stats, tolerances
from fp8parity.judging.decide import IMPLAUSIBLE
from fp8parity.judging.gradients import TOTAL
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references import limits as bounds
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import LOSS
from fp8parity.records.cell import CONTROL_RECIPE, Cell
from fp8parity.records.schema import Measurement
from scipy import special

Marks = npt.NDArray[np.bool_]
Words = npt.NDArray[np.str_]


class Curves(NamedTuple):
    """Runs: ``loss`` (nats per token) and ``norm`` [cells, seeds, steps], the last ``validation`` loss [cells, seeds]. Or gaps of runs."""

    loss: stats.Floats
    norm: stats.Floats
    validation: stats.Floats

    def part(self, rows: npt.NDArray[np.intp], seeds: int) -> Curves:
        return Curves(*(x[rows, :seeds] for x in self))

    def moved(self, by: Curves) -> Curves:
        """These runs with the relative gaps ``by`` in addition."""
        return Curves(*(x * (1 + gap) for x, gap in zip(self, by, strict=True)))


class Reference(NamedTuple):
    """A golden's seeds. ``own_validation`` and ``first_norm`` are those of the run itself, the others are means with its replicas."""

    mean: Curves
    own_validation: stats.Floats
    first_norm: stats.Floats

    @classmethod
    def of(cls, golden: Golden, seeds: int) -> Reference:
        """The first ``seeds`` seeds of a golden, as one cell."""
        kept = golden.seeds[:seeds]
        loss, norm = (np.array([[getattr(s, name) for s in kept]]) for name in ("mean_loss", "mean_norm"))
        mean = Curves(loss, norm, np.array([[s.mean_validation for s in kept]]))
        return cls(mean, np.array([[s.validation[-1][1] for s in kept]]), np.array([[s.grad_norm[0] for s in kept]]))


@dataclass(frozen=True)
class Yardstick:
    """All limits of one cell."""

    row: LossRow
    tail: int
    is_control: bool
    limits: tolerances.Limits
    control: tolerances.Limits
    prior: stats.Prior | None
    drift_prior: stats.Prior | None
    start: bounds.Limits | None
    control_start: bounds.Limits | None

    @classmethod
    def of(cls, cell: Cell, golden: Golden, rules: Policy, numbers: MeasuredNumbers, device: str) -> Yardstick:
        row = rules.loss_row(cell).within(len(golden.seeds))
        own = tolerances.control_limits(golden, row)
        first = Measurement(metric=TOTAL, where=cell.model, value=1.0)
        start, control_start = (bounds.limits(rules, numbers, c, LOSS, first, device) for c in (cell, cell.control))
        return cls(
            row=row,
            tail=golden.tail,
            is_control=cell.is_control,
            limits=own if cell.is_control else tolerances.recipe_limits(golden, cell.recipe, row),
            control=own,
            prior=tolerances.prior_of(golden, cell.recipe, row),
            drift_prior=tolerances.prior_of(golden, CONTROL_RECIPE, row),
            start=start,
            control_start=control_start,
        )


class Verdicts(NamedTuple):
    """One status a cell, the number of seeds that decided it, and which checks were outside their limits, by name."""

    status: Words
    seeds: npt.NDArray[np.intp]
    causes: dict[str, Marks]

    @property
    def red(self) -> Marks:
        return ~np.isin(self.status, ("pass", "improved"))


def judge(runs: Curves, controls: Curves, reference: Reference, stick: Yardstick) -> Verdicts:
    """Judge cells, look by look: more seeds only where the verdict is inconclusive. For BF16, pass its runs as runs and as controls."""
    count = len(runs.loss)
    status, seeds, causes = (
        np.full(count, "inconclusive", dtype="U12"),
        np.zeros(count, dtype=np.intp),
        dict[str, Marks](),
    )
    left = np.arange(count)
    for look in stick.row.seeds:
        found, why = _look(runs.part(left, look), controls.part(left, look), _first(reference, look), stick)
        status[left], seeds[left] = found, look
        for name, marks in why.items():
            causes.setdefault(name, np.zeros(count, dtype=bool))[left] = marks
        left = left[found == "inconclusive"]
        if not left.size:
            break
    return Verdicts(status, seeds, causes)


def _first(reference: Reference, seeds: int) -> Reference:
    return Reference(
        Curves(*(x[:, :seeds] for x in reference.mean)),
        reference.own_validation[:, :seeds],
        reference.first_norm[:, :seeds],
    )


def _look(runs: Curves, controls: Curves, golden: Reference, stick: Yardstick) -> tuple[Words, dict[str, Marks]]:
    row, alpha = stick.row, stick.row.alpha / len(stick.row.seeds)
    tails = [
        (a.loss[..., -stick.tail :] / b.loss[..., -stick.tail :] - 1).mean(-1)
        for a, b in _three(runs, controls, golden.mean)
    ]
    drift = _place(*interval(tails[2], alpha, stick.drift_prior), row.bf16_margin or row.margin)
    low, high = interval(tails[0], alpha, stick.prior)
    total, beside = _place(low, high, row.margin), _place(*interval(tails[1], alpha, stick.prior), row.margin)
    validation = _place(*interval(runs.validation / golden.own_validation - 1, alpha, None), row.margin)
    framework_start = _outside(stick.control_start, controls.norm[..., 0] / golden.first_norm)
    recipe_start = _outside(stick.start, runs.norm[..., 0] / controls.norm[..., 0])
    moved = _outside_limits(controls, golden.mean, stick.control, stick)
    framework = np.isin(drift, ("above", "below")) | _any(moved)
    if stick.is_control:
        off = np.asarray(np.isin(validation, ("above", "below")))
        inside = np.where(drift == "inside", "pass", "inconclusive")
        status = np.where(framework_start | framework | off, "drift", inside)
        return status, {
            "drift": np.asarray(np.isin(drift, ("above", "below"))),
            **moved,
            "validation": off,
            "first step": framework_start,
        }
    own, other = (
        _outside_limits(runs, golden.mean, stick.limits, stick),
        _outside_limits(runs, controls, stick.limits, stick),
    )
    implausible = high < -IMPLAUSIBLE * row.margin
    tail = implausible | (total == "above") | (beside == "above")
    faulty = _any(own) | tail | (validation == "above")
    excused = (beside == "inside") & ~_any(other) & framework
    rest = np.where((total == "inside") & (beside == "inside"), "pass", "inconclusive")
    rest = np.where((rest != "pass") & ((total == "below") | (beside == "below")), "improved", rest)
    status = np.where(faulty, np.where(excused, "drift", "fail"), rest)
    status = np.where(framework_start, "drift", np.where(recipe_start, "fail", status))
    start = framework_start | recipe_start
    return status, {
        "tail margin": tail,
        **own,
        "validation": np.asarray(validation == "above"),
        "first step": start,
        "drift": status == "drift",
    }


def _three(runs: Curves, controls: Curves, golden: Curves) -> Sequence[tuple[Curves, Curves]]:
    """Recipe and golden, recipe and control, control and golden."""
    return (runs, golden), (runs, controls), (controls, golden)


def interval(values: stats.Floats, alpha: float, prior: stats.Prior | None) -> tuple[stats.Floats, stats.Floats]:
    """``stats.mean_interval`` of each cell: (low, high) from ``values`` [cells, seeds]."""
    n = values.shape[-1]
    mean, variance = values.mean(-1), values.var(-1, ddof=1)
    df = np.full(mean.shape, n - 1.0)
    if prior is not None:
        pooled = special.fdtrc(n - 1, prior.df, variance / prior.sd**2) >= stats.POOLED
        both = ((n - 1) * variance + prior.df * prior.sd**2) / (n - 1 + prior.df)
        variance, df = np.where(pooled, both, variance), np.where(pooled, n - 1 + prior.df, df)
    half = special.stdtrit(df, 1 - alpha) * np.sqrt(variance / n)
    return mean - half, mean + half


def _place(low: stats.Floats, high: stats.Floats, margin: float) -> Words:
    """``stats.equivalence`` of each cell."""
    outer = np.where(low > margin, "above", np.where(high < -margin, "below", "undecided"))
    return np.where((-margin < low) & (high < margin), "inside", outer)


def _outside_limits(runs: Curves, reference: Curves, limits: tolerances.Limits, stick: Yardstick) -> dict[str, Marks]:
    """What left its limits during the runs, by name: marks [cells]."""
    half = stick.tail // 2
    gap = runs.loss[..., -2 * half :] / reference.loss[..., -2 * half :] - 1
    change = gap[..., half:].mean(-1) - gap[..., :half].mean(-1)
    trend = _place(*interval(change, stick.row.alpha / len(stick.row.seeds), limits.prior), limits.trend)
    norm = _beyond(limits.norm, runs.norm, reference.norm) if limits.norm else np.zeros(len(gap), dtype=bool)
    return {
        "step band": _beyond(limits.loss, runs.loss, reference.loss),
        "norm band": norm,
        "trend": np.isin(trend, ("above", "below")),
        "last validation": np.asarray(~(np.abs(runs.validation / reference.validation - 1) <= limits.last).all(-1)),
    }


def _beyond(band: stats.Band, runs: stats.Floats, reference: stats.Floats) -> Marks:
    """Whether a seed of each cell leaves the band in any window."""
    own, center = (_windows(x, band.window) for x in (runs, reference))
    return np.asarray((np.abs(own - center) > band.half * center).any((-1, -2)))


def _windows(values: stats.Floats, window: int) -> stats.Floats:
    """The means over consecutive windows of the last axis. An incomplete last window is dropped."""
    whole = values.shape[-1] // window
    return np.asarray(values[..., : whole * window].reshape(*values.shape[:-1], whole, window).mean(-1))


def _outside(limits: bounds.Limits | None, ratios: stats.Floats) -> Marks:
    """Whether a seed of each cell has a first gradient norm outside its limits."""
    if limits is None or not limits.judges:
        return np.zeros(len(ratios), dtype=bool)
    return np.asarray(~((ratios >= limits.low) & (ratios <= limits.high)).all(-1))


def _any(marks: dict[str, Marks]) -> Marks:
    return np.asarray(np.logical_or.reduce(list(marks.values())), dtype=np.bool_)
