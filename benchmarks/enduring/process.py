"""Commands in forked processes that are disturbed: killed at a moment or at an operation on files, or on a disk that becomes full.

The library is imported before the fork, so a command costs a few hundredths of a second.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fp8parity.cli import main
from fp8parity.records import atomic

Work = Callable[[], int]
"""What a process does, in its folder. It returns the exit status."""
LIMIT = 60
"""Seconds after which a process counts as blocked."""


@dataclass(frozen=True)
class Done:
    """How a process ended: exit status (negative for a signal), output, seconds, and the number of its operations on files."""

    code: int
    out: str
    err: str
    seconds: float
    operations: int


@dataclass(frozen=True)
class Disturbance:
    """What happens to a process. ``after``: killed after these seconds. ``kill_at``: killed before this operation on files, from 1.
    ``full_at``: from this operation on, files cannot be made. ``largest``: no file can become larger, in bytes."""

    after: float | None = None
    kill_at: int = 0
    full_at: int = 0
    largest: int | None = None


NONE = Disturbance()


def command(*arguments: str) -> Work:
    """The command fp8parity."""
    return lambda: main(arguments)


_MAKES = {"tempfile.mkstemp", "tempfile.mkdtemp", "os.mkdir", "os.rename", "os.link"}
_CHANGES = _MAKES | {"os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}
"""Names of audit events, beside "open" for writing."""


def _watch(folder: Path, disturbance: Disturbance, count: mmap.mmap) -> None:
    """Count the operations that change files below ``folder``, and disturb one of them."""
    inside, seen = f"{folder}{os.sep}", 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal seen
        writes = event == "open" and bool(given[2] & (os.O_WRONLY | os.O_RDWR))
        if (
            not (writes or event in _CHANGES)
            or isinstance(given[0], int)
            or not os.path.abspath(os.fsdecode(given[0])).startswith(inside)
        ):
            return
        seen += 1
        count[:8] = seen.to_bytes(8, "little")
        if seen == disturbance.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if disturbance.full_at and seen >= disturbance.full_at and (writes or event in _MAKES):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fsdecode(given[0]))

    sys.addaudithook(hook)


class Running:
    """A process that was started in ``folder``."""

    def __init__(self, work: Work, folder: Path, disturbance: Disturbance = NONE) -> None:
        self.disturbance, self.count, self.start = disturbance, mmap.mmap(-1, 8), time.monotonic()
        pipes = os.pipe(), os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _child(work, folder.resolve(), disturbance, self.count, [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        self.read = [read for read, _ in pipes]

    def wait(self) -> Done:
        """Wait for the end, after the kill that the disturbance asks for."""
        if self.disturbance.after is not None:
            time.sleep(max(0.0, self.start + self.disturbance.after - time.monotonic()))
            os.kill(self.pid, signal.SIGKILL)
        out, err = (_all(read) for read in self.read)
        _, status = os.waitpid(self.pid, 0)
        operations = int.from_bytes(self.count[:8], "little")
        return Done(os.waitstatus_to_exitcode(status), out, err, time.monotonic() - self.start, operations)


def run(work: Work, folder: Path, disturbance: Disturbance = NONE) -> Done:
    """Do the work in a process of its own, in ``folder``, and wait for its end."""
    return Running(work, folder, disturbance).wait()


def together(works: Sequence[Work], folder: Path) -> list[Done]:
    """Do several works at the same time."""
    return [running.wait() for running in [Running(work, folder) for work in works]]


def _all(descriptor: int) -> str:
    with os.fdopen(descriptor, "rb") as file:
        return file.read().decode()


def _child(work: Work, folder: Path, disturbance: Disturbance, count: mmap.mmap, outputs: Sequence[int]) -> None:
    """Do the work and end this process, whatever happens."""
    code = 3
    try:
        for number, descriptor in enumerate(outputs, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
        os.chdir(folder)
        os.environ.pop("CI", None)
        signal.alarm(LIMIT)
        atomic._remove_leftovers.cache_clear()  # a new process
        if disturbance.largest is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (disturbance.largest, disturbance.largest))
        _watch(folder, disturbance, count)
        code = work()
    except (OSError, ValueError) as error:  # as fp8parity.cli.main does it, for work that is no command
        print(f"fp8parity: {error}", file=sys.stderr)
        code = 2
    except BaseException:  # the trial reads it from the output, and counts it as a traceback
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
