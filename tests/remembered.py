"""The committed goldens and their policy are read once, by the process from which the others are forked.

Reading takes a quarter of a second, and hundreds of commands and sessions inside tests would do it. Other folders are read each time. The
two largest sets of records take as long, and each process that needs them reads them once.
To import this module is enough.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fp8parity.judging import policy, references
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.records import sets
from fp8parity.records.schema import AnyRecord

GOLDEN = Path(__file__).parents[1] / "golden"
LARGEST = tuple(GOLDEN / "records" / name for name in ("h200.zip",))
_load, _load_policy, _named_records = references.load, policy.load, sets.named_records


@cache
def _committed() -> Goldens:
    return _load(GOLDEN)


@cache
def _committed_policy(today: datetime.date) -> Policy:
    return _load_policy(GOLDEN, today)


def _is_committed(folder: Path) -> bool:
    return folder.resolve() == GOLDEN


def load(folder: Path) -> Goldens:
    """``references.load``."""
    return _committed() if _is_committed(folder) else _load(folder)


def load_policy(folder: Path, today: datetime.date) -> Policy:
    """``policy.load``. Its path is as it was given."""
    return (
        _committed_policy(today).model_copy(update={"path": folder / policy.FILE})
        if _is_committed(folder)
        else _load_policy(folder, today)
    )


@cache
def _committed_records(path: Path) -> list[tuple[Path, AnyRecord]]:
    return [(where.relative_to(path), record) for where, record in _named_records(path)]


def _original(path: Path) -> Path | None:
    """The committed set that this file is, or is a copy of."""
    return next((p for p in LARGEST if p.name == path.name and path.exists() and _facts(p) == _facts(path)), None)


def _facts(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def named_records(*paths: Path) -> Iterator[tuple[Path, AnyRecord]]:
    """``storage.named_records``, as sets of records use it."""
    for path in paths:
        known = _original(path)
        yield from (
            ((path / name, record) for name, record in _committed_records(known)) if known else _named_records(path)
        )


references.load, policy.load, sets.named_records = load, load_policy, named_records
_committed()
_committed_policy(datetime.date.today())
