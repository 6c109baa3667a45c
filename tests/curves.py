"""Made-up runs of other frameworks, in memory, as curves and as tables. Two runs of one seed share the noise of its batches."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fp8parity import runs
from fp8parity.judging import pair
from fp8parity.judging.pair import metrics
from fp8parity.judging.pair.aligned import Pairs, align
from fp8parity.judging.pair.options import PairOptions
from fp8parity.judging.table import Judged, Status
from fp8parity.judging.verdict import Gap, Verdict
from fp8parity.report.pair import PairReport
from fp8parity.runs.run import Run
from log_writers import Curve, automodel, rows

HF = Path(__file__).parent / "hf-trainer"
STEPS = 400
Table = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], dict[str, Any] | list[dict[str, Any]]]


def curve(seed: int = 0, steps: int = STEPS, chaos: int = 0, decay_from: float = 0.0) -> Curve:
    """A BF16 run, or with ``chaos`` a run of the same seed whose losses differ a little, as those of FP8 do."""
    noise = np.random.default_rng(seed).normal(0, 0.03, steps)
    own = np.random.default_rng(1000 + chaos).normal(0, 2e-4, steps) if chaos else np.zeros(steps)
    at = np.arange(steps)
    loss = (2.5 + 6 * np.exp(-at / 60) - 0.4 * at / steps + noise) * (1 + own)
    start = decay_from * steps
    rates = [1e-3 * (0.5 + 0.5 * math.cos(math.pi * max(0.0, s - start) / (steps - start))) for s in at]
    return Curve(loss.tolist(), np.random.default_rng(seed + 1).uniform(0.9, 1.1, steps).tolist(), rates)


def run_of(made: Curve, path: Path) -> Run:
    """The curve as AutoModel writes it, read."""
    return runs.read(automodel(path, made))


def judge(
    bf16: Sequence[Run], fp8: Sequence[Run], options: PairOptions | None = None, repeats: Sequence[Run] = ()
) -> Verdict:
    """The verdict on pairs of runs."""
    return pair.judge(pair.pairs(bf16, fp8, options or PairOptions(), repeats))


def exit_code(v: Verdict) -> int:
    """The exit status of a verdict."""
    return PairReport(Pairs((), PairOptions()), v, "", "").code


def gap_of(v: Verdict) -> Gap | None:
    return v.loss.gap if v.loss else None


def texts(rows: Iterable[Judged]) -> list[str]:
    """The lines of rows."""
    return [text for _, text in metrics.lines(rows)]


def status(rows: Iterable[Judged]) -> Status:
    """The status that rows alone give."""
    return metrics.decide(rows)[0]


def lines(v: Verdict, name: str) -> str:
    return "\n".join(text for n, text in v.lines if n == name)


def run(losses: Sequence[float], source: str = "bf16", **changes: Any) -> Run:
    """A run in memory that logged every step from step 1 on."""
    given = {"source": source, "format": "made up", "axis": "steps", "averaging": "of one step", "decimals": None}
    return Run.model_validate({**given, "points": list(range(1, len(losses) + 1)), "loss": list(losses), **changes})


def noisy(steps: int = STEPS, seed: int = 0) -> list[float]:
    """Losses with noise of their own for each batch. The first few are higher."""
    return (np.random.default_rng(seed).uniform(2.0, 3.0, steps) + 4 * 0.5 ** np.arange(steps)).tolist()


def near(
    gap: float | Sequence[float] | np.ndarray = 0.0, steps: int = STEPS, seed: int = 0, noise: int = 1
) -> list[float]:
    """The losses of ``noisy`` with noise of 0.01% and a gap."""
    own = np.random.default_rng(noise).normal(0, 1e-4, steps)
    return (np.asarray(noisy(steps, seed)) * (1 + own) * (1 + np.asarray(gap))).tolist()


def pairs(*given: tuple[Run, Run], options: PairOptions | None = None) -> Pairs:
    options = options or PairOptions()
    return Pairs(tuple(align(a, b, options) for a, b in given), options)


def both(bf16: Sequence[float], fp8: Sequence[float] | None = None, **changes: Any) -> tuple[Run, Run]:
    """A pair; both runs have the same changes. The losses of FP8 are BF16's unless they are given."""
    return run(bf16, **changes), run(bf16 if fp8 is None else fp8, "fp8", **changes)


def table(chaos: int = 0, lost: Iterable[int] = (), *names: str) -> Table:
    """A run as a table; its ``lost`` steps lack these metrics (unless given, loss and gradient norm)."""
    made: Table = [{"step": s, "loss": x, "grad_norm": g, "lr": r} for s, x, g, r in rows(curve(chaos=chaos))]
    for at in lost:
        made[at - 1] |= dict.fromkeys(names or ("loss", "grad_norm"))
    return made


def changed(chaos: int, change: Change) -> Table:
    """A run whose rows are replaced by what ``change`` makes of each."""
    made = [change(row) for row in table(chaos)]
    return [new for found in made for new in (found if isinstance(found, list) else [found])]


def as_csv(path: Path, made: Table) -> Path:
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for row in made for k in row)))
        writer.writeheader()
        writer.writerows(made)
    return path.with_suffix(".csv")


def as_lines(path: Path, made: Table) -> Path:
    path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return path.with_suffix(".jsonl")


def as_list(path: Path, made: Table) -> Path:
    """With a null for every key that a row lacks, as W&B and pandas write a history."""
    names = dict.fromkeys(k for row in made for k in row)
    path.with_suffix(".json").write_text(json.dumps([{name: row.get(name) for name in names} for row in made]))
    return path.with_suffix(".json")


def as_state(path: Path, made: Table) -> Path:
    path.with_suffix(".json").write_text(json.dumps({"log_history": made}))
    return path.with_suffix(".json")


FORMATS = (as_csv, as_lines, as_list, as_state)


def verdict_on(write: Callable[[Path, Table], Path], folder: Path, bf16: Table, fp8: Table) -> Verdict:
    a, b = (runs.read(write(folder / name, made)) for name, made in (("a", bf16), ("b", fp8)))
    return judge([a], [b], PairOptions(unfiltered=True))
