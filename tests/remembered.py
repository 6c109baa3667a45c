"""The committed goldens and their policy are read once, by the process from which the others are forked.

Reading takes a quarter of a second, and hundreds of commands and sessions inside tests would do it. Other folders are read each time.
To import this module is enough.
"""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path

from fp8parity.judging import goldens, policy
from fp8parity.judging.goldens import Goldens
from fp8parity.judging.policy import Policy

GOLDEN = Path(__file__).parents[1] / "golden"
_load, _load_policy = goldens.load, policy.load


@cache
def _committed() -> Goldens:
    return _load(GOLDEN)


@cache
def _committed_policy(today: datetime.date) -> Policy:
    return _load_policy(GOLDEN, today)


def _is_committed(folder: Path) -> bool:
    return folder.resolve() == GOLDEN


def load(folder: Path) -> Goldens:
    """``goldens.load``."""
    return _committed() if _is_committed(folder) else _load(folder)


def load_policy(folder: Path, today: datetime.date) -> Policy:
    """``policy.load``. Its path is as it was given."""
    return (
        _committed_policy(today).model_copy(update={"path": folder / policy.FILE}) if _is_committed(folder) else _load_policy(folder, today)
    )


goldens.load, policy.load = load, load_policy
_committed()
_committed_policy(datetime.date.today())
