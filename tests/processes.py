"""Run pytest and fp8parity as users do: in this process, or in one of their own that a test ends."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fp8parity import recipes
from fp8parity.cli import main
from fp8parity.numerics import emulation
from fp8parity.recipes.registry import ADAPTERS
from fp8parity.records.check_names import CHECKS
from fp8parity.training import provenance
from fp8parity.workload import corpus
from fp8parity.workload.optimizers import OPTIMIZERS

ROOT = Path(__file__).parents[1]
FIXTURES = str(ROOT / "fixtures")
CHOSEN = ("-p", "no:cacheprovider", "-p", "no:unraisableexception", "-p", "no:faulthandler")
"""Sessions inside tests leave out plugins that change the process of the test."""
INSTALLED = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Of the installed plugins they have only pytest-xdist."""
TIMEOUT = 300
"""Seconds."""
NIGHTLY = pytest.mark.skipif(
    not os.environ.get("FP8PARITY_NIGHTLY"), reason="takes minutes; FP8PARITY_NIGHTLY=1 runs it"
)
"""For a test whose subject has a shorter test, too."""


@dataclass(frozen=True)
class Done:
    """What a run printed, its exit status, and its processor time in seconds."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float


def run(program: str, *arguments: str, cwd: Path = ROOT, path: Sequence[str] = (FIXTURES,), **variables: str) -> Done:
    """Run "pytest" or "fp8parity" in this process, in ``cwd``, with more environment ``variables``."""
    out, err, begun = io.StringIO(), io.StringIO(), time.process_time()
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(_kept())
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in set(os.environ):
            patch.delenv(name)
        for name, value in environment(Path(scratch), path, **variables).items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        patch.setattr(sys, "path", [str(cwd), *path, *sys.path])
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = int(pytest.main([*CHOSEN, *arguments])) if program == "pytest" else main(arguments)
    return Done(code, out.getvalue(), err.getvalue(), time.process_time() - begun)


@contextmanager
def started(
    program: str, *arguments: str, cwd: Path = ROOT, path: Sequence[str] = (FIXTURES,), **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start a program as a process of its own, and kill it at the end. ``more``: variables, or ``stdout`` of the process."""
    stdout = more.pop("stdout", subprocess.PIPE)
    command = [sys.executable, "-m", program, *(CHOSEN if program == "pytest" else ()), *arguments]
    with tempfile.TemporaryDirectory() as scratch:
        variables = environment(Path(scratch), path, **more)
        process = subprocess.Popen(
            command, cwd=cwd, env=variables, stdout=stdout, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def environment(scratch: Path, path: Sequence[str] = (FIXTURES,), **variables: str) -> dict[str, str]:
    """Return the environment of a program: not of a CI, and without a C++ compiler unless ``variables`` have a ``PATH``."""
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("GITHUB", "PYTEST")) and k not in ("CI", "FP8PARITY_COMMIT", "PATH")
    }
    own = {"PYTHONPATH": os.pathsep.join(path), "COLUMNS": "160", "PYTEST_DEBUG_TEMPROOT": str(scratch)}
    own |= INSTALLED | variables
    if "PATH" not in variables:
        own["PATH"] = without_compiler(scratch)
    return kept | own


def without_compiler(folder: Path) -> str:
    """Return a search path with git and without a C++ compiler: the emulation then runs eagerly."""
    for name in ("git", "python3"):
        found = shutil.which(name)
        if found and not (folder / name).exists():
            (folder / name).symlink_to(found)
    return str(folder)


@contextmanager
def _kept() -> Iterator[None]:
    """Put back what a session in this process changes: imported modules of its folder, and what its plugins registered."""
    before, hooks = dict(sys.modules), list(sys.meta_path)
    shared = (sys.prefix, FIXTURES, str(Path(os.__file__).parent))
    with ExitStack() as stack:
        for registry in (recipes.RECIPES, ADAPTERS, CHECKS, corpus.CORPORA, OPTIMIZERS):
            stack.enter_context(registry.restored())
        for cache in (provenance.tree, emulation.kernel):
            cache.cache_clear()
            stack.callback(cache.cache_clear)
        yield
    sys.meta_path[:] = hooks
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or sys.prefix
        if before.get(name) is not module and not file.startswith(shared):
            sys.modules.pop(name)
    sys.modules |= {name: module for name, module in before.items() if name not in sys.modules}
