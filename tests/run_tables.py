"""Tables of made-up runs, as a user's logger writes them: one row a step, with an empty cell or a null where a value is missing."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from curves import curve
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict, judge
from fp8parity.judging.pair.finding import Asked
from log_files import rows

Table = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], dict[str, Any] | list[dict[str, Any]]]


def table(chaos: int = 0, lost: Iterable[int] = (), norm: bool = True) -> Table:
    """A run of which the ``lost`` steps have no loss, and with ``norm`` no gradient norm."""
    made: Table = [{"step": s, "loss": x, "grad_norm": g, "lr": r} for s, x, g, r in rows(curve(chaos=chaos))]
    for at in lost:
        made[at - 1] |= {"loss": None, "grad_norm": None} if norm else {"loss": None}
    return made


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


def changed(chaos: int, change: Change) -> Table:
    """A run whose rows are replaced by what ``change`` makes of each."""
    made = [change(row) for row in table(chaos)]
    return [new for found in made for new in (found if isinstance(found, list) else [found])]


def verdict_on(write: Callable[[Path, Table], Path], folder: Path, bf16: Table, fp8: Table) -> PairVerdict:
    a, b = (runs.read(write(folder / name, made)) for name, made in (("a", bf16), ("b", fp8)))
    return judge([a], [b], Asked(unfiltered=True))
