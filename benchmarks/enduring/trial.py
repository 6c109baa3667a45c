"""What a trial is, what may come of it, and the table of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NamedTuple

from enduring.process import Done


class Outcome(StrEnum):
    """``WHOLE``: all files are whole, and the next command works. ``REFUSED``: exit status 2 and one line that names the file. ``RED``: a
    red verdict. ``NOT_VISIBLE``: green, and nothing could show the change (the class says why). ``LOST``: everything else."""

    WHOLE = "whole"
    REFUSED = "refused"
    RED = "red"
    NOT_VISIBLE = "not visible"
    LOST = "lost"
    TRACEBACK = "tracebacks"


class Result(NamedTuple):
    """What came of a trial. ``note`` is the class of what is not visible, or what was lost."""

    outcome: Outcome
    note: str = ""


class Trial(NamedTuple):
    """One result, with the family and the kind of the trial and its number, from which its chance is made."""

    family: str
    what: str
    number: int
    result: Result


Kinds = Mapping[str, Callable[[Random, Path], Result]]
"""The trials of a family by what they try. Each gets its own chance and an empty folder."""


def fault(done: Done) -> Result | None:
    """The result of a process that crashed, or None."""
    crashed = "Traceback" in done.err or done.code == 3
    return Result(Outcome.TRACEBACK, (done.err.strip().splitlines() or ["exit status 3"])[-1]) if crashed else None


def lost(why: str) -> Result:
    return Result(Outcome.LOST, why)


HEADS = ("family", "what", "trials", *Outcome)


def table(trials: Sequence[Trial]) -> str:
    """The counts as a Markdown table: a line for each kind of each family, and one for all."""
    kinds = dict.fromkeys((t.family, t.what) for t in trials)
    rows = [(*kind, *_counts([t for t in trials if (t.family, t.what) == kind])) for kind in kinds]
    rows.append(("all", "", *_counts(trials)))
    lines = [f"| {' | '.join(map(str, row))} |" for row in (HEADS, *rows)]
    return "\n".join([lines[0], "|---" * len(HEADS) + "|", *lines[1:]])


def _counts(trials: Sequence[Trial]) -> list[int]:
    found = Counter(t.result.outcome for t in trials)
    return [len(trials), *(found[o] for o in Outcome)]


def notes(trials: Sequence[Trial], *outcomes: Outcome) -> list[str]:
    """One line for each note of these outcomes, with its count and the number of its first trial."""
    found: dict[str, list[Trial]] = {}
    for t in trials:
        if t.result.outcome in outcomes:
            found.setdefault(f"{t.family}, {t.what}: {t.result.note}", []).append(t)
    return [
        f"* {len(some)} x {text}" + (f" (trial {some[0].number})" if Outcome.LOST in outcomes else "")
        for text, some in found.items()
    ]
