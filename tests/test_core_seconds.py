"""benchmarks/core_seconds.py: a test that works uses core-seconds, one that sleeps does not, and a program counts for its test."""

from __future__ import annotations

from pathlib import Path

import core_seconds
import pytest

TESTS = """
import subprocess, sys, time
import pytest

WORK = "import time; end = time.process_time() + 0.2\\nwhile time.process_time() < end: pass"

@pytest.mark.parametrize("part", [1, 2])
def test_works(part):
    exec(WORK)

def test_sleeps():
    time.sleep(0.2)

def test_starts():
    subprocess.run([sys.executable, "-c", WORK], check=True)
"""


def test_core_seconds_are_those_of_each_test(pytester: pytest.Pytester, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(core_seconds.FOLDER, str(tmp_path))
    pytester.makepyfile(TESTS)
    assert pytester.inline_run("-p", "core_seconds", "-p", "no:randomly").ret == 0
    rows = core_seconds.table(tmp_path)
    assert next(iter(rows)) == "test_works"
    tests, seconds, cores, children = rows["test_works"]
    assert tests == 2 and 0.4 <= cores < 0.8 and seconds >= cores * 0.9 and children == 0
    _, seconds, cores, children = rows["test_sleeps"]
    assert seconds >= 0.2 and cores < 0.1 and children == 0
    _, _, cores, children = rows["test_starts"]
    assert cores < 0.1 and 0.2 <= children < 0.8
