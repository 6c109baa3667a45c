"""pytest and fp8parity in processes of their own. They are forked from one process that has imported torch: that saves seconds each."""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import fork_workers
import forked
import pytest

ROOT = Path(__file__).parents[1]
FIXTURES = str(ROOT / "fixtures")
CHOSEN = ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:logging", "--assert=plain")
"""These sessions leave out three plugins of pytest's own, and how it explains what an assert compared. The second one collects garbage five
times at the end, and no test reads its warnings. The third one adds handlers to 56 loggers of torch before each test, and takes them off
after it. For asserts, pytest looks through all modules for each of its plugins."""
INSTALLED = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Of the installed plugins they have only pytest-xdist: to look for all takes a seventh of a short session. ``-p`` would look, too."""
OF_PYTEST = (
    "faulthandler",
    "helpconfig",
    "pastebin",
    "setuponly",
    "setupplan",
    "skipping",
    "threadexception",
    "unittest",
    "warnings",
)
OF_XDIST = ("plugin", "dsession", "remote", "workermanage")
PLUGINS = [*(f"_pytest.{name}" for name in OF_PYTEST), *(f"xdist.{name}" for name in OF_XDIST), "pdb", "readline"]
"""Each session imports these, and many those of pytest-xdist."""
TIMEOUT = 300
"""Seconds."""
CONTEXT = multiprocessing.get_context("forkserver")
LIBRARIES = ["torch._dynamo", "torchao.float8", "hypothesis", "scipy.stats"]
"""torch imports ``torch._dynamo`` by itself when a model is built: 2.7 s of each process that trains."""
OWN = [
    "fp8parity.runner",
    "fp8parity.gate.plugin",
    "fp8parity.gate.reporter",
    "fp8parity.cli",
    "fp8parity.checks.state",
    "warmed",
]
RANKS = ["torch.distributed.run", "fp8parity.distributed.checkpoint"]
CONTEXT.set_forkserver_preload([*LIBRARIES, *OWN, *RANKS, *PLUGINS, "remembered", "reports"])


def share() -> None:
    """Let the workers of pytest-xdist be forked from this process, and let them share the process that forks others. Each would import
    torch twice, for itself and for that process. For the main process, before it starts its workers."""
    with _silenced():  # torchao says which of its kernels this machine lacks
        serve()  # it imports beside this process
        for name in (*LIBRARIES, *OWN):
            importlib.import_module(name)
    # It is a child of this process, which the workers cannot wait for.
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[method-assign]
    fork_workers.install()


def serve() -> None:
    """Start the process from which others are forked, if it does not run. What it imports is found in ``tests``, too: without that path it
    would leave those modules out and say nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([FIXTURES, str(ROOT / "tests")]))
        forkserver._forkserver.ensure_running()  # type: ignore[attr-defined]  # it is this one that ``share`` replaces


@contextmanager
def _silenced() -> Iterator[None]:
    """The region in which this process, and one that it starts, have no standard error, and this one logs no warning."""
    kept = os.dup(2)
    logging.disable(logging.WARNING)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        os.dup2(kept, 2)
        os.close(kept)


@dataclass(frozen=True)
class Done:
    """What a process printed, its exit status, and its process time in seconds."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


@contextmanager
def started(
    program: str,
    *arguments: str,
    cwd: Path = ROOT,
    path: Sequence[str] = (FIXTURES,),
    output: Connection | None = None,
    **variables: str,
) -> Iterator[tuple[ForkServerProcess, list[Path]]]:
    """Start "pytest" or "fp8parity" with arguments, in ``cwd``, with more ``variables`` in the environment. Variables by which a CI is
    known are left out. Without a ``PATH`` among the variables, there is no C++ compiler. It yields the process, and the files of what it
    prints and of its seconds. With ``output`` it prints into that, not into the first file."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GITHUB", "PYTEST")) and k not in ("CI", "FP8PARITY_COMMIT", "PATH")
    }
    environment = kept | {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "160"} | variables
    with tempfile.TemporaryDirectory() as scratch:
        environment.setdefault("PATH", without_compiler(Path(scratch)))
        environment |= INSTALLED
        # The temporary folders of these sessions go with them. In the usual place each would look through the folders of the tests.
        environment.setdefault("PYTEST_DEBUG_TEMPROOT", scratch)
        files = [Path(scratch) / name for name in ("out", "err", "seconds")]
        serve()
        process = CONTEXT.Process(target=_child, args=(program, arguments, cwd, environment, files, output))
        process.start()
        yield process, files


def run(program: str, *arguments: str, **terms: Any) -> Done:
    """Run a program to its end. ``terms`` are those of ``started``."""
    with started(program, *arguments, **terms) as (process, files):
        process.join(TIMEOUT)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"{program} {' '.join(arguments)} took longer than {TIMEOUT} s")
        out, err, seconds = (f.read_text() for f in files)
        return Done(process.exitcode, out, err, float(seconds))


def without_compiler(folder: Path) -> str:
    """A search path on which there is git and no C++ compiler: the emulation then runs eagerly, and nothing waits for compilation."""
    for name in ("git", "python3"):
        found = shutil.which(name)
        if found and not (folder / name).exists():
            (folder / name).symlink_to(found)
    return str(folder)


def _child(
    program: str,
    arguments: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    files: Sequence[Path],
    output: Connection | None = None,
) -> None:
    gc.freeze()  # what was imported before lives to the end: pytest's search for garbage takes 0.6 s less
    os.chdir(cwd)
    forked.take(environment)
    sys.path[:0] = [str(cwd), *environment["PYTHONPATH"].split(os.pathsep)]
    for number, file in enumerate(files[:2], 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    if output is not None:
        os.dup2(output.fileno(), 1)
    if program == "pytest":
        if "-n" in arguments:  # the helper is another fork of this large process: a sixth of a short session
            fork_workers.install()
        code = int(pytest.main([*CHOSEN, *arguments]))
    else:
        from fp8parity.cli import main

        code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    files[2].write_text(f"{time.process_time():.3f}")
    os._exit(code)
