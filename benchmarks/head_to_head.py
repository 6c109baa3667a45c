"""Every rule on every trial: how many planted faults it finds, and how many sound cells it calls red. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import peers
import trials
from fp8parity.judging.quantities import WINDOWS
from fp8parity.judging.references import Goldens
from fp8parity.judging.stats import share_interval
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import AnyRecord, Measurements, NonFinite
from trials import DEVICES, FRAMEWORK, RECIPE, REPLICAS, SOUND, Trial

OURS = "fp8-parity"
KINDS = (FRAMEWORK, RECIPE, SOUND, REPLICAS, DEVICES)
GRADIENTS, WORST = "gradients", "worst parameter sqnr"
Rows = list[list[str]]


@dataclass(frozen=True)
class Count:
    """How many of ``n`` trials were red."""

    red: int
    n: int

    def __add__(self, other: Count) -> Count:
        return Count(self.red + other.red, self.n + other.n)

    def text(self) -> str:
        """For example "3 of 70 [1%, 12%]", with the 95% interval, or "-" without trials."""
        if not self.n:
            return "-"
        low, high = share_interval(self.red, self.n)
        digits = 0 if self.n < 1000 else 2
        return f"{self.red} of {self.n} [{low:.{digits}%}, {high:.{digits}%}]"


@dataclass(frozen=True)
class Judged:
    """A trial with all verdicts on it: red or not by rule, and this project's own verdict."""

    trial: Trial
    model: str
    red: dict[str, bool]
    verdict: Verdict

    @property
    def shown_by(self) -> str:
        """What this project's verdict names: the first step, a fault along the run, or a gap."""
        if not self.red[OURS]:
            return "-"
        if self.verdict.loss and self.verdict.loss.odd_start:
            return "first step"
        named = [k for k in dict(self.verdict.lines) if k in {q.name for q in WINDOWS}]
        return ", ".join(named) or ("undecided" if self.verdict.status == "inconclusive" else "gap")

    @property
    def headline(self) -> str:
        """The headline of the verdict, with what was wrong at the first step."""
        start = self.verdict.loss.odd_start if self.verdict.loss else None
        return f"{self.verdict.headline} ({start})" if start else self.verdict.headline


def judged(model: trials.Model, stored: Goldens) -> Iterator[Judged]:
    """All trials of a model, by all rules."""
    every = [s.loss for s in model.golden.seeds]
    for trial in trials.of(model, stored):
        found = trials.verdict(trial, stored, model.rules)
        red = {rule.name: rule.red(trial.runs, trial.references, every) for rule in peers.RULES}
        yield Judged(trial, model.title, {**red, OURS: found.status not in trials.GREEN}, found)


def count(found: Sequence[Judged], rule: str, *kinds: str) -> Count:
    """How many trials of these kinds a rule calls red."""
    reds = [j.red[rule] for j in found if j.trial.kind in kinds]
    return Count(sum(reds), len(reds))


def head_to_head(found: Sequence[Judged]) -> Rows:
    """One row a rule: its counts by kind of trial."""
    return [
        [rule, *(count(found, rule, kind).text() for kind in KINDS)] for rule in [*(r.name for r in peers.RULES), OURS]
    ]


def short_table(found: Sequence[Judged]) -> list[str]:
    """The lines of the README's table: rule, detected faults, false alarms."""
    lines = ["| rule | faults in BF16 found | faults in a recipe found | false alarms |", "|---|---|---|---|"]
    for rule in [*(r.name for r in peers.RULES), OURS]:
        cells = (count(found, rule, *kinds).text() for kinds in ((FRAMEWORK,), (RECIPE,), (SOUND, REPLICAS, DEVICES)))
        lines.append(f"| {rule} | {' | '.join(cells)} |")
    return lines


def shown(found: Sequence[Judged]) -> tuple[list[str], Rows]:
    """What shows each planted fault to this project: the heads, and one row a fault. A fault that was not planted has an empty cell."""
    faults = [j for j in found if j.trial.should_be_red]
    columns = list(dict.fromkeys((j.model, j.trial.kind) for j in faults))
    cells = {(j.trial.name, j.model, j.trial.kind): j.shown_by if j.red[OURS] else "**missed**" for j in faults}
    heads = [f"{model.split()[0]}, {'BF16' if kind == FRAMEWORK else 'recipe'}" for model, kind in columns]
    return heads, [
        [name, *(cells.get((name, *c), "") for c in columns)] for name in sorted({j.trial.name for j in faults})
    ]


def nan_run(model: trials.Model, stored: Goldens) -> Rows:
    """What each rule says about BF16 runs whose losses are NaN from the first step on."""
    plain = [
        r
        for session in model.sessions
        for cell, runs in session.runs.items()
        if cell.is_control
        for r in runs
        if not r.non_finite
    ]
    runs = tuple(r for r in {r.seed: r for r in plain if model.golden.seed(r.seed)}.values())[: trials.SEEDS]
    nan = [float("nan")] * runs[0].steps
    broken = tuple(
        r.model_copy(update={"loss": nan, "grad_norm": nan, "non_finite": NonFinite(step=0, where="loss")})
        for r in runs
    )
    found = trials.verdict(Trial(FRAMEWORK, "NaN", broken, runs, (), model.golden), stored, model.rules)
    every = [s.loss for s in model.golden.seeds]
    rows = [
        [rule.name, _color(rule.red(broken, runs, every))] for rule in peers.RULES if rule.name != peers.RULES[-1].name
    ]
    return [*rows, [OURS, _color(found.status not in trials.GREEN)]]


def _color(red: bool) -> str:
    return "red" if red else "**green**"


def gradient_errors(sets: Sequence[Sequence[AnyRecord]]) -> Count:
    """How many sound cells Megatron-LM's rule on gradients calls red: the gradient of one parameter is further than 8.29% from FP32's. The
    check ``gradients`` records it."""
    cells: dict[object, bool] = {}
    for r in (r for records in sets for r in records):
        if isinstance(r, Measurements) and r.check == GRADIENTS and not r.variant and not r.cell.is_control:
            worst = [m.value for m in r.values if m.metric == WORST]
            if worst:
                cells[r.cell, r.provenance.device] = min(worst) < peers.SQNR_LIMIT
    return Count(sum(cells.values()), len(cells))
