"""Processes that hold a GPU. They are forked: to start Python and import the library takes eight times as long."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import processes
from fp8parity.training.locks import GPU, Use, held


def hold(folder: Path, gigabytes: str, *ends: Connection) -> None:
    """Hold a GPU until a line comes. ``ends`` become standard input, output and error."""
    for number, end in enumerate(ends):
        os.dup2(end.fileno(), number)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    with held(folder, GPU("gpu-0", 80.0), Use(float(gigabytes or 0), alone=not gigabytes)):
        os.write(1, b"held\n")
        os.read(0, 1)
    sys.stderr.flush()
    os._exit(0)


class Holder:
    """A process that takes so much of a GPU of 80 GB, or all of it alone (""), and keeps it until told to let go."""

    def __init__(self, folder: Path, gigabytes: str) -> None:
        (self._in, to), (out, self._out), (error, self._error) = (os.pipe() for _ in range(3))
        ends = [
            Connection(self._in, writable=False),
            Connection(self._out, readable=False),
            Connection(self._error, readable=False),
        ]
        self.input, self.output, self.error = os.fdopen(to, "w", buffering=1), os.fdopen(out), os.fdopen(error)
        processes.serve()
        self.process = processes.CONTEXT.Process(target=hold, args=(folder, gigabytes, *ends))
        self.process.start()
        for end in ends:
            end.close()

    def holds(self, within: float) -> bool:
        ready, _, _ = select.select([self.output], [], [], within)
        return bool(ready) and self.output.readline() == "held\n"

    def waits(self, within: float) -> str:
        """What it says when it begins to wait, or "" if it says nothing."""
        ready, _, _ = select.select([self.error], [], [], within)
        return self.error.readline() if ready else ""

    def queues(self, within: float) -> bool:
        """Whether Linux says that it waits for a lock file. One that waits in the queue says nothing."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            found = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
            if any(words[1] == "->" and words[5] == str(self.process.pid) for words in found):
                return True
            time.sleep(0.01)
        return False

    def release(self) -> str:
        """Let it end, and return what it still says."""
        self.input.write("\n")
        self.process.join(30)
        assert self.process.exitcode == 0
        return self.error.read()

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        for file in (self.input, self.output, self.error):
            file.close()


@contextmanager
def holding(folder: Path, gigabytes: str) -> Iterator[Holder]:
    """A holder that ends with the test, whatever the test does."""
    holder = Holder(folder, gigabytes)
    try:
        yield holder
    finally:
        holder.end()
