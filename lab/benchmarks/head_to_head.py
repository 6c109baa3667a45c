"""Judge every trial by every rule: planted faults that are found, and sound cells that are red. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import peers
import trials
from fp8parity.judging.references import Goldens
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import AnyRecord, Measurements, NonFinite
from scipy.stats import binomtest
from trials import FRAMEWORK, KINDS, Trial

OURS = "fp8-parity"
GRADIENTS, WORST = "gradients", "worst parameter sqnr"


@dataclass(frozen=True)
class Count:
    """How many of ``n`` trials were red."""

    red: int
    n: int

    def text(self) -> str:
        """Return for example "3 of 70 [1%, 12%]", with the 95% interval, or "-" without trials."""
        if not self.n:
            return "-"
        low, high = binomtest(self.red, self.n).proportion_ci()
        digits = 0 if self.n < 1000 else 2
        return f"{self.red} of {self.n} [{low:.{digits}%}, {high:.{digits}%}]"


@dataclass(frozen=True)
class Judged:
    """A trial with all verdicts on it: red or not by rule, and this project's own verdict."""

    trial: Trial
    model: str
    red: dict[str, bool]
    verdict: Verdict


def judged(model: trials.Model, stored: Goldens) -> Iterator[Judged]:
    """Judge all trials of a model by all rules."""
    every = [s.loss for s in model.golden.seeds]
    for trial in trials.of(model, stored):
        found = trials.verdict(trial, stored, model.rules)
        red = {rule.name: rule.red(trial.runs, trial.references, every) for rule in peers.RULES}
        yield Judged(trial, model.title, {**red, OURS: found.status not in trials.GREEN}, found)


def count(found: Sequence[Judged], rule: str, *kinds: str) -> Count:
    """Count the trials of these kinds that a rule calls red."""
    reds = [j.red[rule] for j in found if j.trial.kind in kinds]
    return Count(sum(reds), len(reds))


def table(found: Sequence[Judged]) -> list[list[str]]:
    """Return one row for each rule: its counts by kind of trial."""
    names = [*(rule.name for rule in peers.RULES), OURS]
    return [[name, *(count(found, name, kind).text() for kind in KINDS)] for name in names]


def green_on_nan(model: trials.Model, stored: Goldens) -> list[str]:
    """Return the rules that are green on BF16 runs with a loss of NaN from the first step on."""
    sessions = (runs for session in model.sessions for cell, runs in session.runs.items() if cell.is_control)
    plain = {r.seed: r for runs in sessions for r in runs if not r.non_finite and model.golden.seed(r.seed)}
    runs = tuple(plain.values())[: trials.SEEDS]
    nan = [float("nan")] * runs[0].steps
    changes = {"loss": nan, "grad_norm": nan, "non_finite": NonFinite(step=0, where="loss")}
    broken = tuple(r.model_copy(update=changes) for r in runs)
    found = trials.verdict(Trial(FRAMEWORK, "NaN", broken, runs, (), model.golden), stored, model.rules)
    every = [s.loss for s in model.golden.seeds]
    names = [rule.name for rule in peers.RULES[:-1] if not rule.red(broken, runs, every)]
    return [*names, *([OURS] if found.status in trials.GREEN else [])]


def gradient_errors(sets: Sequence[Sequence[AnyRecord]]) -> Count:
    """Count the sound cells that Megatron-LM's rule on gradients calls red."""
    cells: dict[object, bool] = {}
    for r in (r for records in sets for r in records):
        if isinstance(r, Measurements) and r.check == GRADIENTS and not r.variant and not r.cell.is_control:
            worst = [m.value for m in r.values if m.metric == WORST]
            if worst:
                cells[r.cell, r.provenance.device] = min(worst) < peers.SQNR_LIMIT
    return Count(sum(cells.values()), len(cells))
