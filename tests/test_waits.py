"""benchmarks/waits.py: the seconds of a test belong to the line of the library that waits, and to the line below it."""

from __future__ import annotations

from pathlib import Path

import pytest
import waits

TESTS = """
import time
from fp8parity.records import locks

def test_waits(monkeypatch):
    monkeypatch.setattr(locks.Path, "mkdir", lambda *args, **kwargs: time.sleep(0.5))
    with locks.locked(locks.Path("folder") / "a.lock"):
        pass

def test_sleeps():
    time.sleep(0.5)
"""


def test_seconds_belong_to_the_line_that_waits(pytester: pytest.Pytester, tmp_path: Path, monkeypatch):
    (pytester.path / "folder").mkdir()
    monkeypatch.setenv(waits.FOLDER, str(tmp_path))
    pytester.makepyfile(TESTS)
    assert pytester.inline_run("-p", "waits", "-p", "no:randomly").ret == 0
    found = waits.table(tmp_path)
    key, seconds = next((key, s) for key, s in found.items() if key[0] == "test_waits")
    assert key[1].startswith("locks.py:") and key[2].endswith("<lambda>") and 0.2 < seconds < 1
    assert any(key[0] == "test_sleeps" and key[1] == "" and 0.2 < s < 1 for key, s in found.items())
    assert list(found.values()) == sorted(found.values(), reverse=True)
