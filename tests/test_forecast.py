"""A gate says how long it takes before anything runs, refuses what nobody has granted, and shows what it does while it runs."""

from __future__ import annotations

import re

import gates
import pytest

pytestmark = pytest.mark.slow

SLOW = """
import time
from fp8parity.gate import feed
from fp8parity.gate.progress import Line

Line.every = 0.01
feed.OFTEN = 0.0  # each step is written
made = Runner.trajectory

def slowly(self, cell, seed):
    step = self.progress(cell, f"seed{seed}")
    for done in range(1, 4):
        time.sleep(0.02)
        step(done, 300, 2.5)
    return made(self, cell, seed)

Runner.trajectory = slowly
"""
ESTIMATE = (
    r"^fp8-parity: 3 tests to run, about (\d+ s|\d+ min|[\d.]+ hours)( with 2 workers)? \(\S+-tiny-emulated: .* a run\)"
)


@pytest.fixture
def gate(tmp_path):
    return gates.of(tmp_path)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_the_estimate_stands_before_the_first_test(gate, workers):
    done = gate(*workers)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    [at] = [i for i, line in enumerate(lines) if re.match(ESTIMATE, line)]
    [table] = [i for i, line in enumerate(lines) if line.startswith("verdict ")]
    assert at < table
    assert (" with 2 workers" in lines[at]) == bool(workers)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_more_than_the_granted_hours_is_refused_before_anything_runs(gate, tmp_path, workers):
    done = gate(*workers, "--parity-hours", "1e-6", "--seeds", "400")
    text = done.stdout + done.stderr
    assert done.returncode == 4, text
    assert re.search(
        r"3 tests to run, .* more than the 1e-06 hours that are granted: give --parity-hours \d+ to run it, or", text
    )
    assert "Traceback" not in text and "Accept" not in text and "Refuse" not in text
    assert not list((tmp_path / ".parity").glob("*.json"))
    assert gate(*workers, "--collect-only", "--parity-hours", "1e-6").returncode == 0


@pytest.mark.parametrize("given", ["none", "-1", "nan", "0"])
def test_hours_are_a_number_above_zero(gate, given):
    done = gate("--parity-hours", given)
    assert done.returncode == 4
    assert f"--parity-hours takes a number of hours above 0, not '{given}'" in done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_progress_without_a_terminal_is_plain_lines(gate, workers):
    done = gate(*workers, "-k", "emulated", "--seeds", "2", more=SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = re.findall(r"^fp8-parity: (\d)/3 tests(?:, about .* left)?(?: \| (.*))?$", done.stdout, re.MULTILINE)
    assert {number for number, _ in shown} >= {"0", "2"}
    assert any(re.match(r"\S+-tiny-\w+ seed[01] [23]/300 loss 2\.500", text) for _, text in shown)
    assert any(" | " in text for _, text in shown) == bool(workers)


def test_progress_can_be_turned_off(gate):
    assert not re.search(
        r"\d/3 tests", gate("--parity-progress", "none", "-k", "emulated", "--seeds", "2", more=SLOW).stdout
    )
