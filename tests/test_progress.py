"""Progress: each process says what it does, and the main process shows it below pytest's own line, although pytest holds its file
descriptor captured. Without a terminal it is a plain line."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from pathlib import Path

import pytest
from fp8parity.gate import feed
from fp8parity.gate.feed import Feed
from fp8parity.gate.progress import Behind, Line, LiveLine, Ticker, fitting
from fp8parity.planning.estimate import Planned
from sessions import cell

TE = cell("te-current", model="micro")


@pytest.fixture
def screen():
    """A terminal of 40 columns: the side that is read, and the file that is written."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(theirs, "w") as file:
        yield ours, file
    os.close(ours)


def read(ours: int) -> str:
    """What was written until now. A terminal may give it in parts."""
    text, patience = b"", 5.0
    while select.select([ours], [], [], patience)[0]:
        text, patience = text + os.read(ours, 4096), 0.1
    return text.decode().replace("\r\n", "\n")


def test_the_live_line_stands_below_that_of_pytest_and_is_erased_before_it_writes(screen):
    ours, file = screen
    live = LiveLine(file, lambda: 7)
    out = Behind(file, live)
    live.show(["1/4 tests", "te-current seed0 12/300", "bf16 seed0 14/300"])
    assert read(ours) == "\x1b[J\n1/4 tests | te-current seed0 12/300 +1\x1b[A\r\x1b[7C"
    out.write("PASSED")
    assert read(ours) == "\x1b[JPASSED"
    out.write("more")
    assert read(ours) == "more"
    live.show(["x" * 99])
    assert f"\n{'x' * 39}\x1b[A" in read(ours)
    live.close()
    assert read(ours) == "\x1b[J"


def test_it_reaches_the_terminal_while_pytest_holds_the_descriptor(screen, tmp_path):
    ours, file = screen
    live = LiveLine(file, lambda: 0)
    held = os.open(tmp_path / "held", os.O_WRONLY | os.O_CREAT)
    os.dup2(held, file.fileno())
    live.show(["\x1b[2Jevil"])
    assert read(ours) == "\x1b[J\n\\x1b[2Jevil\x1b[A\r"
    assert (tmp_path / "held").read_text() == ""
    os.close(held)


def test_plain_lines_do_not_break_the_line_of_pytest_twice(tmp_path):
    with (tmp_path / "log").open("w") as file:
        column = 3
        plain = Line(file, lambda: column)
        plain.show(["1/4 tests", "::error x"])
        plain.show(["2/4 tests"])
        column = 5
        plain.show(["3/4 tests"])
        plain.close()
    assert (tmp_path / "log").read_text() == (
        "\nfp8-parity: 1/4 tests | ::error x\nfp8-parity: 2/4 tests\n\nfp8-parity: 3/4 tests\n"
    )


def test_the_ticker_shows_until_it_is_stopped(tmp_path):
    with (tmp_path / "log").open("w") as file:
        line = Line(file, lambda: 0)
        line.every = 0.01
        ticker = Ticker(line, lambda: ["now"])
        ticker.start()
        due = time.monotonic() + 20
        while (tmp_path / "log").read_text().count("now\n") < 3 and time.monotonic() < due:
            time.sleep(0.01)
        ticker.stop()
        shown = (tmp_path / "log").read_text()
        assert shown.count("fp8-parity: now\n") >= 3
        time.sleep(0.05)
        assert (tmp_path / "log").read_text() == shown
        assert not ticker.thread.is_alive()


@pytest.mark.parametrize(
    ("width", "text"), [(20, "done | first | other"), (19, "done | first +1"), (10, "done +2"), (3, "don")]
)
def test_what_does_not_fit_is_counted(width, text):
    assert fitting(["done", "first", "other"], width) == text


def test_processes_say_what_they_do(tmp_path, monkeypatch):
    monkeypatch.setattr(feed, "OFTEN", -1.0)
    first, second = Feed(tmp_path, "gw0"), Feed(tmp_path, "gw1")
    with first.doing("test_a", TE, "loss parity"), second.doing("test_b", TE, "gradients"):
        step = first.steps(TE, "seed3")
        step(1, 300, float("nan"))
        [a, b] = feed.running(tmp_path)
        assert (a.test, a.text, a.pace) == ("test_a", "te-current-micro-emulated seed3 1/300", None)
        assert (b.test, b.text, b.step) == ("test_b", "te-current-micro-emulated gradients", 0)
        time.sleep(0.02)
        step(3, 300, 2.9134)
        [a, _] = feed.running(tmp_path)
        assert a.text == "te-current-micro-emulated seed3 3/300 loss 2.913"
        assert a.pace is not None and 0.009 < a.pace < 5
    assert feed.running(tmp_path) == []


def test_steps_in_quick_succession_are_written_once(tmp_path):
    mine = Feed(tmp_path, "gw0")
    with mine.doing("test_a", TE, "loss parity"):
        step = mine.steps(TE, "seed0")
        for done in range(1, 200):
            step(done, 300, 3.0)
        [now] = feed.running(tmp_path)
        assert now.step < 199


@pytest.mark.parametrize("folder", [None, Path("/nowhere/at/all")])
def test_a_process_that_cannot_say_it_is_not_disturbed(folder):
    lost = Feed(folder, "gw0")
    lost.plan([])
    with lost.doing("test_a", TE, "loss parity"):
        lost.steps(TE, "seed0")(1, 2, 3.0)


def test_the_plan_is_read_as_it_was_written(tmp_path):
    plan = [Planned(name="a::test_x[y]", test="test_x", cell=TE, runs=2, skipped=False)]
    assert feed.planned(tmp_path) == []
    Feed(tmp_path, "gw1").plan(plan)
    assert feed.planned(tmp_path) == plan


def test_a_plan_that_another_process_still_writes_is_not_read(tmp_path, monkeypatch):
    """Two workers end their collection at the same time. The second one's half of a file stopped the whole session."""
    seen: list[list[Planned]] = []
    real = os.replace

    def replace(part: Path, path: Path) -> None:
        part.write_bytes(b"")  # as it is before its content has reached the disk
        seen.append(feed.planned(tmp_path))
        real(part, path)

    monkeypatch.setattr(os, "replace", replace)
    Feed(tmp_path, "gw0").plan([])
    assert seen == [[]]
