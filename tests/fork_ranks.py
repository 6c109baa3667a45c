"""Torchrun and its ranks are forked from a process that has imported torch, not started: that saves each of them three seconds.

Torchrun itself does all the rest. Its ranks are children of it, and it sees their exit codes. It has threads of its own when it forks.
They wait for sockets and time-outs then, and hold no lock that a rank needs: 60 launches on busy cores did not hang.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from typing import IO, Any, NoReturn

import forked
import processes
import pytest
from fp8parity.distributed import launch


class Child:
    """A forked rank, as torchrun uses ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked rank", timeout or 0)
            time.sleep(0.02)
        return self.returncode or 0


class Torchrun:
    """A forked torchrun, as ``launch`` uses ``subprocess.Popen``."""

    def __init__(self, process: ForkServerProcess) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.is_alive()

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("torchrun", timeout or 0)
        return self.process.exitcode


def install(patch: pytest.MonkeyPatch) -> None:
    """Let ``launch`` fork."""

    def started(command: Sequence[str], out: IO[str], environment: Mapping[str, str]) -> Torchrun:
        arguments = command[command.index("torch.distributed.run") + 1 :]
        processes.serve()
        process = processes.CONTEXT.Process(target=_torchrun, args=(arguments, out.name, environment))
        process.start()
        return Torchrun(process)

    patch.setattr(launch, "_started", started)


def _torchrun(arguments: Sequence[str], out: str, environment: Mapping[str, str]) -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
    from torch.distributed.run import main

    gc.freeze()
    os.setsid()
    file = os.open(out, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    forked.take(environment)
    SubprocessHandler._popen = _forked  # type: ignore[method-assign,assignment]  # what torchrun starts ranks with
    main(list(arguments))


def _forked(handler: Any, command: Sequence[str], environment: Mapping[str, str]) -> Child:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _rank(command, environment)
    return Child(pid)


def _rank(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be ``python -u -m PROGRAM FOLDER``."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # torchrun has handlers of its own
    forked.take(environment)
    sys.path[:0] = [p for p in environment["PYTHONPATH"].split(os.pathsep) if p not in sys.path]
    sys.argv = list(command[command.index("-m") + 1 :])
    forked.end_with(lambda: runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True))
