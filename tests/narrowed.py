"""What a test knows to be there, said so that a type checker knows it too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_record

T = TypeVar("T")


def some(value: T | None) -> T:
    """A value that is not None."""
    assert value is not None
    return value


def trajectories(records: Iterable[AnyRecord]) -> list[Trajectory]:
    """Records of runs alone."""
    found = list(records)
    runs = [r for r in found if isinstance(r, Trajectory)]
    assert len(runs) == len(found)
    return runs


def load_trajectory(path: Path) -> Trajectory:
    [run] = trajectories([load_record(path)])
    return run
