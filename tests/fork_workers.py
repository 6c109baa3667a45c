"""xdist's workers of a pytest inside a test are forked, not started: to import torch takes each of them five seconds.

A helper process is forked while its parent has one thread. It forks the workers, because a process with threads cannot do it safely.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import forked

BOOTSTRAP = "import sys;exec(eval(sys.stdin.readline()))"
"""What execnet's own workers run: ``python -u -c ...``."""
LARGEST = 1 << 20
"""Bytes of a request: the environment."""


def install() -> None:
    """Start the helper, and let execnet ask it for workers. For a process with one thread that has imported what workers need."""
    from execnet import gateway_base, gateway_io

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _help(theirs)
    theirs.close()

    class Forked(gateway_base.Popen2IO):
        """A worker with pipes for its input and output, as execnet's ``Popen2IOMaster``."""

        def __init__(self, args: Sequence[str], execmodel: Any) -> None:
            (read, to), (come, write), (self.ended, alive) = os.pipe(), os.pipe(), os.pipe()
            given = [read, write, alive]
            socket.send_fds(ours, [json.dumps([os.getcwd(), dict(os.environ)]).encode()], given)
            for file in given:
                os.close(file)
            self.pid = int(ours.recv(LARGEST))
            super().__init__(os.fdopen(to, "wb"), os.fdopen(come, "rb"), execmodel=execmodel)

        def wait(self) -> None:
            """Wait for the end of the worker: only it holds the other end of this pipe."""
            os.read(self.ended, 1)

        def kill(self) -> None:
            os.kill(self.pid, signal.SIGKILL)  # also of a worker that has ended: its helper keeps its number

    real = gateway_io.Popen2IOMaster

    def started(args: Sequence[str], execmodel: Any) -> gateway_base.Popen2IO:
        # An execnet that starts its workers in another way starts its own. The tests are slower then, and say the same.
        return (Forked if list(args[-2:]) == ["-c", BOOTSTRAP] else real)(args, execmodel)

    gateway_io.Popen2IOMaster = started  # type: ignore[misc,assignment]


def _help(requests: socket.socket) -> NoReturn:
    """Fork a worker for each request, until the process that asks is gone."""
    while True:
        request, files, *_ = socket.recv_fds(requests, LARGEST, 3)
        if not request:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _work(request, files)
        for file in files:
            os.close(file)
        requests.send(str(pid).encode())


def _work(request: bytes, files: Sequence[int]) -> NoReturn:
    folder, environment = json.loads(request)
    os.chdir(folder)
    forked.take(environment)
    read, write, alive = files
    os.set_inheritable(alive, False)
    os.dup2(read, 0)
    os.dup2(write, 1)
    os.close(read)
    os.close(write)
    sys.argv, sys.stdin, sys.stdout, sys.stderr = (
        ["-c"],
        os.fdopen(0, "r"),
        os.fdopen(1, "w"),
        os.fdopen(2, "w", closefd=False),
    )
    for logger in logging.Logger.manager.loggerDict.values():  # their handlers have the parent's standard error
        for handler in getattr(logger, "handlers", ()):
            if type(handler) is logging.StreamHandler:
                handler.setStream(sys.stderr)
    forked.end_with(lambda: exec(BOOTSTRAP, {"__name__": "__main__"}))
