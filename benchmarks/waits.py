"""On which lines the tests of a session spend their time: a plugin of pytest that looks at the main thread, and a table of what it saw.

    WAITS=FOLDER PYTHONPATH=benchmarks pytest -p waits -m h100 suites/numerics -n 16
    python benchmarks/waits.py FOLDER

The table has a line for each test function and line of this library: seconds, and the line of another package below it. A process that
shares a GPU waits where it reads a number, so such lines come first. ``core_seconds`` says which tests work meanwhile.
"""

from __future__ import annotations

import csv
import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import fp8parity
import pytest
from core_seconds import own_file, rows_of
from fp8parity.gate.tally import function_of

FOLDER = "WAITS"
"""The environment variable with the folder."""
PERIOD = 0.03
"""Seconds between two looks. A look takes some microseconds of the thread that it looks at."""
LINES = 40
"""Lines of the table."""
LIBRARY = str(Path(fp8parity.__file__).parent)
PLUGIN = str(Path(LIBRARY) / "gate")
"""The part of the library that runs below every test."""
Line = tuple[str, str, str]
"""A test function, a line of this library, and the innermost line."""


def place(frame: FrameType) -> str:
    """A line of code as "file:line function"."""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"


def where(frame: FrameType) -> tuple[str, str]:
    """The innermost line of this library below ``frame``, or "" if there is none, and the innermost line of all."""
    below: FrameType | None = frame
    while below is not None:
        name = below.f_code.co_filename
        if name.startswith(LIBRARY) and not name.startswith(PLUGIN):
            return place(below), place(frame)
        below = below.f_back
    return "", place(frame)


class Watch:
    """Looks at the main thread from another one, while a test runs."""

    def __init__(self) -> None:
        self.test = ""
        self.seen: Counter[Line] = Counter()
        self.ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        main = threading.main_thread().ident
        while not self.ended.wait(PERIOD):
            test, frame = self.test, sys._current_frames().get(main or 0)
            if test and frame:
                self.seen[test, *where(frame)] += 1

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.test = function_of(item.nodeid)
        result = yield
        self.test = ""
        return result

    def pytest_sessionfinish(self) -> None:
        self.ended.set()
        with open(own_file(os.environ[FOLDER]), "w", newline="") as out:
            csv.writer(out).writerows([*key, count * PERIOD] for key, count in self.seen.items())


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch())


def table(folder: Path) -> dict[Line, float]:
    """Seconds by test function, line of this library, and innermost line. The longest come first."""
    sums: defaultdict[Line, float] = defaultdict(float)
    for test, own, innermost, seconds in rows_of(folder):
        sums[test, own, innermost] += float(seconds)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def main() -> None:
    for (test, own, innermost), seconds in list(table(Path(sys.argv[1])).items())[:LINES]:
        print(f"{seconds:7.1f} s  {test:20} {own:40} {innermost}")


if __name__ == "__main__":
    main()
