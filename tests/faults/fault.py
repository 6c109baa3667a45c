"""What a planted fault is, and what a check must say about it. The tables of the other modules are made of these."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pytest
from fp8parity.judging.decide import Changed
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from sessions import Session


class Kind(StrEnum):
    """What is wrong: one of the parts that a release can break."""

    MODEL = "model"
    """The model, its loss or its optimizer. BF16 trains wrongly, too."""
    RECIPE = "recipe"
    """How a value becomes a code, or how codes are multiplied."""
    STATE = "state"
    """What a linear layer keeps from step to step."""
    LAYOUT = "layout"
    """Where values and scales lie: axes, padding, transposes."""
    FRAMEWORK = "framework"
    """What surrounds the recipe: kernels, data, the training loop, speed and memory."""
    GATE = "gate"
    """The gate's own input: records, goldens, and what was asked for."""


class Blame(StrEnum):
    """Whom a verdict blames. The first five are the words of a verdict on losses."""

    FRAMEWORK_CHANGED = Changed.FRAMEWORK
    RECIPE_CHANGED = Changed.RECIPE
    BOTH = Changed.BOTH
    NOBODY = Changed.UNKNOWN
    NEITHER = Changed.NOTHING
    RECIPE = "the recipe"
    FRAMEWORK = "the framework"
    INPUT = "the input"


@dataclass(frozen=True)
class Seen:
    """What a check said: the status of its verdict, the places and causes that it named, and its whole message."""

    status: str
    blame: str
    places: tuple[str, ...]
    causes: tuple[str, ...]
    text: str
    seconds: float = 0.0
    """Process time that was spent in other processes."""


@dataclass(frozen=True)
class Bench:
    """What a look needs from pytest. ``make`` is the maker of made-up trajectories."""

    session: Session
    patch: pytest.MonkeyPatch
    folder: Path
    make: Callable[..., Trajectory]


class Look(Protocol):
    """Plants a fault, runs one check, and returns what the check said."""

    @property
    def check(self) -> str:
        """The name of the check, or "gate"."""

    @property
    def where(self) -> str:
        """The cell or the records that the check looks at, for people."""

    def prepare(self, bench: Bench) -> None:
        """Make what the check compares with, before anything is planted."""

    def __call__(self, plant: Any, bench: Bench) -> Seen: ...


KINDS = {
    "not quantized": "nothing was quantized",
    "scale": "a scale",
    "towards zero": "towards zero",
    "away from zero": "away from zero",
    "accumulator": "a short accumulator",
    "signs": "signs",
    "places": "its worst",
    "repeated": "in every pass",
    "operands": "its operands do not belong together",
}
"""The causes that a numerics verdict knows, each with a part of its text."""


def kinds(texts: Iterable[str]) -> set[str]:
    """The causes that texts name."""
    return {kind for kind, words in KINDS.items() if any(words in text for text in texts)}


Words = str | tuple[str, ...]
"""One part of a message, or several."""


@dataclass(frozen=True)
class Finding:
    """What one look must say about a fault.

    ``place`` must be one of the places that it names, or the metric of one. A ``place`` of "" names none: the headline says all.
    ``cause`` is part of a cause, and no cause of another kind may be named, ``words`` part of the message. No place may start with one of ``hidden``: these numbers are too coarse
    for the fault.
    """

    look: Look
    place: str
    blame: Blame
    status: str = "fail"
    cause: str = ""
    words: Words = ""
    hidden: tuple[str, ...] = ()

    def misses(self, seen: Seen) -> list[str]:
        """What is wrong with what a look said. An empty list is right."""
        words = (self.words,) if isinstance(self.words, str) else self.words
        named = {"", *seen.places, *(name.partition(" @ ")[0] for name in seen.places)}
        wrong = {
            f"the status is {seen.status}, not {self.status}": seen.status != self.status,
            f"the blame is on {seen.blame!r}, not on {self.blame!r}": seen.blame != self.blame,
            f"{self.place!r} is not named": self.place not in named,
            f"no cause says {self.cause!r}": bool(self.cause) and not any(self.cause in text for text in seen.causes),
            f"other causes are named: {seen.causes}": bool(kinds(seen.causes) - kinds((self.cause,))),
            f"{self.hidden} should not see it": any(
                name.startswith(self.hidden) for name in seen.places if self.hidden
            ),
        }
        return [text for text, is_wrong in wrong.items() if is_wrong] + [
            f"no words {w!r}" for w in words if w not in seen.text
        ]


@dataclass(frozen=True)
class Fault:
    """One thing that can go wrong. ``source`` is the report of it. Every look of ``seen`` must find ``plant``."""

    kind: Kind
    plant: Any
    seen: tuple[Finding, ...]
    source: str = "made up"
    name: str = ""
    """The key of the fault in its table."""


def seen_of(verdict: Verdict) -> Seen:
    """What a verdict says."""
    names = tuple(name for name, _ in verdict.lines)
    causes = tuple(text for name, text in verdict.lines if name == "cause")
    return Seen(verdict.status, _blame(verdict), names, causes, verdict.message())


def _blame(verdict: Verdict) -> str:
    if verdict.loss and verdict.loss.blame:
        return verdict.loss.blame
    if verdict.status in ("stale", "no-golden", "error", "inconclusive"):
        return Blame.INPUT
    framework = verdict.cell.is_control or verdict.headline.startswith("BF16")
    return Blame.FRAMEWORK if framework else Blame.RECIPE
