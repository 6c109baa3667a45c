"""A rank that dies, hangs, fails, or has other packages: one sentence that names it, in time, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from fp8parity.checks.protocol import Result
from fp8parity.distributed import launch, report, worker
from fp8parity.distributed.report import Collective, RankReport
from sessions import cell

TASK = "rank_faults:first_arm"


@pytest.fixture
def spec(session):
    return session.spec(cell("bf16", "native", "micro").model_copy(update={"ranks": 2}))


@pytest.fixture
def planted(spec, monkeypatch):
    """Runs a task on two ranks with a fault, and returns its numbers. Programs of tests are found in their folder."""

    def run(fault: str, task: str = TASK, program: str = "rank_faults", **terms: float) -> Result:
        monkeypatch.setenv("FP8PARITY_PLANT", fault)
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        return launch.launch(task, spec, program=program, **{"limit": 200, "patience": 20, **terms})

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "kill",
            r"^2 ranks: rank 1 was killed by SIGKILL; (rank 0 was in collective \d+ \(gloo:|torchrun then ended rank 0)",
        ),
        ("leave", "^2 ranks: rank 1 failed: ValueError: the disk of this rank is full"),
    ],
)
def test_one_sentence_names_the_rank(once, planted, fault, words):
    with pytest.raises(ValueError, match=words) as error:
        once(f"ranks-{fault}", lambda: planted(fault))
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_hung_collective_names_the_missing_rank(planted, monkeypatch):
    kept: list[list[RankReport]] = []
    real = report.sentence

    def keep(reports: list[RankReport], ranks: int, output: str) -> str:
        kept.append(reports)
        return real(reports, ranks, output)

    monkeypatch.setattr(report, "sentence", keep)
    before = time.monotonic()
    words = r"rank 0 hangs in collective \d+ \(gloo:all_gather of \d+ BFloat16\): rank 1 never came to it and is in hang \(rank_faults"
    with pytest.raises(ValueError, match=words):
        planted("hang and be seen")
    assert time.monotonic() - before < 150
    [reports] = kept
    assert not any(os.path.exists(f"/proc/{r.pid}") for r in reports)


class Torchrun:
    """A torchrun that writes ``reports`` at its start. ``hangs``: it ends only when it is killed."""

    def __init__(self, reports: list[RankReport], hangs: bool) -> None:
        self.reports, self.hangs, self.calls, self.pid = reports, hangs, list[str](), -1

    def __call__(self, command: list[str], **options: object) -> Torchrun:
        for made in self.reports:
            made.write(Path(command[-1]))
        return self

    def wait(self, timeout: float | None = None) -> int:
        if self.hangs and timeout is not None:
            raise subprocess.TimeoutExpired("torchrun", timeout)
        return 0

    def send_signal(self, number: int) -> None:
        self.calls.append(signal.Signals(number).name)

    def killpg(self, pid: int, number: int) -> None:
        self.calls.append(f"all {signal.Signals(number).name}")


@pytest.mark.parametrize(
    ("state", "hangs", "words", "calls"),
    [
        ("asked", True, "2 ranks did not end within 25 s: rank 0 is in f; rank 1 is in f", ["SIGTERM", "all SIGKILL"]),
        ("done", False, "2 ranks ended without an error and measured nothing", ["SIGTERM"]),
    ],
)
def test_late_or_empty_ranks_are_no_result(spec, monkeypatch, state, hangs, words, calls):
    made = Torchrun([rank(k, state, at="f") for k in range(2)], hangs)
    monkeypatch.setattr(launch, "GRACE", 0.0)
    monkeypatch.setattr(subprocess, "Popen", made)
    monkeypatch.setattr(os, "killpg", made.killpg)
    with pytest.raises(ValueError, match=f"^{words}$"):
        launch.launch(TASK, spec, limit=25)
    assert made.calls == calls


def test_ranks_with_other_packages_are_refused(monkeypatch):
    def gathered(held: list[dict[str, str]], own: dict[str, str]) -> None:
        held[:] = [own, own | {"torch": "2.11.0"}]

    monkeypatch.setattr(worker.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(worker.dist, "all_gather_object", gathered)
    words = "the packages differ: rank 0 has torch 2.13.0, and rank 1 has torch 2.11.0"
    with pytest.raises(ValueError, match=words):
        worker.agree({"torch": "2.13.0"})


def collective(number: int, name: str = "gloo:all_gather") -> Collective:
    return Collective(
        number=number, group="0", name=name, dtypes=(["Float"], ["Float"]), sizes=([8], [16]), created=0.0
    )


def rank(number: int, state: str, **more: object) -> RankReport:
    return RankReport.model_validate({"rank": number, "pid": 1, "state": state, **more})


@pytest.mark.parametrize(
    ("reports", "words"),
    [
        ([], "rank 0, 1, 2 never started: out of memory"),
        ([rank(0, "done"), rank(1, "done"), rank(2, "running")], "rank 2 ended and said nothing"),
        (
            [rank(k, "hangs", waits=collective(4), last=[collective(4)]) for k in (0, 1)]
            + [rank(2, "asked", last=[collective(3)])],
            "rank 0 hangs in collective 4 (gloo:all_gather of 8 Float): rank 2 never came to it",
        ),
        (
            [rank(0, "hangs", waits=collective(4), last=[collective(4)])]
            + [rank(k, "asked", last=[collective(4, "gloo:all_reduce")]) for k in (1, 2)],
            "rank 0 hangs in collective 4 (gloo:all_gather of 8 Float): rank 1 is in another one, "
            "collective 4 (gloo:all_reduce of 8 Float)",
        ),
        (
            [
                rank(0, "failed", error="RuntimeError: Connection closed", when=1),
                rank(1, "failed", error="KeyError: 'x'", when=2),
            ],
            "rank 1 failed: KeyError: 'x'; rank 0 then failed, too",
        ),
    ],
)
def test_first_cause_is_named_from_the_reports(reports, words):
    assert report.sentence(reports, 3, "out of memory\n") == words


def torchrun(*deaths: int) -> str:
    """What torchrun prints of ranks that died, by their exit codes."""
    return "".join(
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 7{rank})\n"
        for rank, code in enumerate(deaths)
    )


@pytest.mark.parametrize(
    ("deaths", "words"),
    [
        ((-15, -9), "rank 1 was killed by SIGKILL; torchrun then ended rank 0"),
        ((-15, -11, -15), "rank 1 was killed by SIGSEGV; torchrun then ended rank 0, 2"),
        ((-15, 3), "rank 1 ended with exit status 3 and said nothing; torchrun then ended rank 0"),
        ((-15, -15), "rank 0 was killed by SIGTERM; rank 1 was killed by SIGTERM"),  # somebody else ended both
    ],
)
def test_rank_that_torchrun_ended_is_not_the_cause(deaths, words):
    """torchrun may end the others before they notice that they lost a rank."""
    reports = [rank(k, "running") for k in range(len(deaths))]
    assert report.sentence(reports, len(deaths), torchrun(*deaths)) == words
