"""Which tests of a session use the processors: a plugin of pytest that notes the process time of each test, and a table of what it noted.

    CORE_SECONDS=FOLDER PYTHONPATH=benchmarks pytest -p core_seconds -m h100 suites/numerics -n 24
    python benchmarks/core_seconds.py FOLDER

The table has a line for each test function: tests, seconds, core-seconds of their processes, and core-seconds of programs that these
started and waited for. The processes of Inductor's pools are in neither. A worker that waits for the GPU and does not sleep uses its core.
"""

from __future__ import annotations

import csv
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fp8parity.gate.tally import function_of

FOLDER = "CORE_SECONDS"
"""The environment variable with the folder."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    begun = _used()
    result = yield
    row = [item.nodeid, *(f"{after - before:.3f}" for before, after in zip(begun, _used(), strict=True))]
    with open(own_file(os.environ[FOLDER]), "a", newline="") as out:
        csv.writer(out).writerow(row)
    return result


def _used() -> tuple[float, float, float]:
    """Seconds of the clock, of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), time.process_time(), children.ru_utime + children.ru_stime


def own_file(folder: str) -> Path:
    """The file of this process in the folder."""
    return Path(folder) / f"{os.environ.get('PYTEST_XDIST_WORKER', 'main')}.csv"


def rows_of(folder: Path) -> Iterator[list[str]]:
    """The rows of the files of all processes."""
    for path in sorted(folder.glob("*.csv")):
        with open(path, newline="") as lines:
            yield from csv.reader(lines)


def table(folder: Path) -> dict[str, list[float]]:
    """For each test function: tests, seconds, core-seconds, and core-seconds of children. Those with the most core-seconds come first."""
    sums: dict[str, list[float]] = {}
    for test, *seconds in rows_of(folder):
        row = sums.setdefault(function_of(test), [0.0, 0.0, 0.0, 0.0])
        row[:] = [a + b for a, b in zip(row, [1.0, *map(float, seconds)], strict=True)]
    return dict(sorted(sums.items(), key=lambda item: -item[1][2] - item[1][3]))


def main() -> None:
    rows = table(Path(sys.argv[1]))
    print(f"{'':24} tests  seconds  core-s  children")
    for name, (tests, seconds, cores, children) in rows.items():
        print(f"{name:24} {tests:5.0f} {seconds:8.0f} {cores:7.0f} {children:9.0f}")


if __name__ == "__main__":
    main()
