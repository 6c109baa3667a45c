"""The bar is drawn on a real terminal although pytest holds its file descriptor captured, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

CODE = """
import os, sys
from contextlib import contextmanager
from fp8parity.gate import progress

terminal, held = os.dup(2), os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)

class Capture:
    @contextmanager
    def global_and_fixture_disabled(self):
        os.dup2(terminal, 2)
        yield
        os.dup2(held, 2)

os.dup2(held, 2)
bar = progress.bars(Capture())("te-current seed 0")
print("bar" if bar else "none")
if bar:
    bar(1, 2), bar(2, 2)
"""


def drawn(tmp_path, stderr):
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "held")], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True
    )
    return done.stdout.strip()


def test_bar_reaches_the_terminal(tmp_path):
    ours, theirs = pty.openpty()
    assert drawn(tmp_path, theirs) == "bar"
    os.close(theirs)
    text = os.read(ours, 4096).decode()
    assert "te-current seed 0 [###############...............] 1/2" in text
    assert text.endswith("2/2\r\x1b[K")
    assert (tmp_path / "held").read_text() == ""


def test_no_bar_without_a_terminal(tmp_path):
    assert drawn(tmp_path, subprocess.DEVNULL) == "none"
