"""Sessions of pytest with two workers, of which a process is killed. A session with ``--parity-resume`` follows."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import processes
import projects
from fp8parity.records import manifest
from fp8parity.records.storage import load_records

from enduring.process import LIMIT, Done, command, run
from enduring.project import leftovers
from enduring.trial import Kinds, Outcome, Result, fault, lost

ARGUMENTS = (
    "suites/convergence",
    "--model",
    "nano",
    "--recipe",
    "te-current",
    "--recipe",
    "te-block",
    "--execution",
    "emulated",
)
REPORT = "out.json"
RECORDS = ".parity"


class Session:
    """A session of pytest in processes of its own."""

    def __init__(self, project: Path, *more: str) -> None:
        self.project, self.scratch = project, tempfile.TemporaryDirectory()
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("GITHUB", "PYTEST", "FP8PARITY")) and k not in ("CI", "PATH")
        }
        variables = kept | {
            "PYTHONPATH": processes.FIXTURES,
            "PATH": processes.without_compiler(Path(self.scratch.name)),
        }
        arguments = [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            *ARGUMENTS,
            "-n",
            "2",
            "--parity-report",
            REPORT,
            *more,
        ]
        self.output = (Path(self.scratch.name) / "output").open("w+")
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=project, env=variables, stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def workers(self) -> list[int]:
        """The numbers of the worker processes that run now."""
        pid = self.process.pid
        with contextlib.suppress(FileNotFoundError):
            return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return []

    def wait(self) -> Done:
        """Wait for pytest. Workers whose pytest was killed may run on."""
        code = self.process.wait(LIMIT * 3)
        self.output.seek(0)
        return Done(code, self.output.read(), "", time.monotonic() - self.start, 0)

    def end(self) -> None:
        """End what still runs of the session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.output.close()
        self.scratch.cleanup()


def _all(session: Session, chance: Random) -> None:
    os.killpg(session.process.pid, signal.SIGKILL)


def _main(session: Session, chance: Random) -> None:
    session.process.kill()


def _worker(session: Session, chance: Random) -> None:
    found = session.workers()
    if found:
        os.kill(chance.choice(found), signal.SIGKILL)


@functools.cache
def template() -> Path:
    """A project with a stored golden of ``nano``, committed."""
    folder = projects.make(Path(tempfile.mkdtemp(prefix="endurance-")))
    projects.record_golden(folder)
    shutil.rmtree(folder / RECORDS)
    projects.commit(folder)
    return folder


def remove_template() -> None:
    if template.cache_info().currsize:
        shutil.rmtree(template())
    template.cache_clear()


Verdicts = list[tuple[str, str, str]]


@functools.cache
def undisturbed() -> tuple[Verdicts, int]:
    """The verdicts of a session to which nothing happens, and the number of its records. Raises ``RuntimeError`` if it is not green."""
    with tempfile.TemporaryDirectory() as scratch:
        project = _fresh(Path(scratch))
        done = _finished(project)
        found = _verdicts(project) if done.code == 0 else []
        if not found:
            raise RuntimeError(f"the session of the trials is not sound: {done.out}")
        return found, len(load_records(project / RECORDS))


def _fresh(scratch: Path) -> Path:
    return Path(shutil.copytree(template(), scratch / "project", symlinks=True))


def _finished(project: Path, *more: str) -> Done:
    session = Session(project, *more)
    try:
        return session.wait()
    finally:
        session.end()


def _verdicts(project: Path) -> Verdicts:
    rows = json.loads((project / REPORT).read_text())["verdicts"]
    return sorted((json.dumps(v["cell"], sort_keys=True), v["status"], v["headline"]) for v in rows)


def _records(project: Path) -> list[Path]:
    return [p for p in sorted((project / RECORDS).glob("*.json")) if not p.name.startswith("manifest-")]


def _trial(kill: Callable[[Session, Random], None]) -> Callable[[Random, Path], Result]:
    def trial(chance: Random, scratch: Path) -> Result:
        """Kill when some of the records are there, or a moment later. A second session starts at once."""
        (wanted, count), project = undisturbed(), _fresh(scratch)
        session = Session(project)
        try:
            number, moment = chance.randint(0, count), chance.uniform(0, 0.6)
            while len(_records(project)) < number and session.process.poll() is None:
                time.sleep(0.002)
            time.sleep(moment)
            kill(session, chance)
            first = session.wait()
            problem = _after(project, first)
            resumed = _finished(project, "--parity-resume")
        finally:
            session.end()
        return problem or _compared(project, resumed, wanted)

    return trial


def _after(project: Path, first: Done) -> Result | None:
    """What is wrong with what the killed session left: records are whole, and a set without its manifest is no release."""
    done = run(command("judge", RECORDS, "--release"), project)
    if fault(done):
        return fault(done)
    none = done.code == 2 and "holds no records" in done.err
    if done.code == 2 and not none:
        return lost(f"a record of the killed session is not whole: {done.err.strip()}")
    return lost("the set of a killed session is a release") if first.code != 0 and done.code == 0 else None


def _compared(project: Path, resumed: Done, wanted: Sequence[tuple[str, str, str]]) -> Result:
    if "INTERNALERROR" in resumed.out or resumed.code != 0:
        return lost(f"the resumed session ends with {resumed.code}: {resumed.out.strip().splitlines()[-1:]}")
    if _verdicts(project) != wanted:
        return lost("the resumed session gives other verdicts")
    if len(manifest.load([project / RECORDS])) not in (1, 2):
        return lost("the resumed session left no manifest")
    left = leftovers(project)
    return lost(f"{left[0]} is left") if left else Result(Outcome.WHOLE)


KINDS: Kinds = {"pytest": _trial(_main), "a worker": _trial(_worker), "all processes": _trial(_all)}
