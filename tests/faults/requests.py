"""Faults of what a user asks for, and of the project around the suites: pytest in a process of its own must end red and say why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import projects
from projects import record_golden, start

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen, Words


def as_it_is(project: Path) -> None:
    """Change nothing: what is asked for is the fault."""


@dataclass(frozen=True)
class Suites:
    """``pytest suites/convergence`` in a project that a plant changes. ``variables`` go to the environment. ``absent`` are file patterns of
    which no file may lie in the golden folder afterwards."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    absent: str = ""
    check: str = "gate"

    @property
    def where(self) -> str:
        return " ".join(["pytest suites/convergence", *self.arguments])

    def prepare(self, bench: Bench) -> None:
        projects.make(bench.folder)

    def __call__(self, plant: Callable[[Path], object], bench: Bench) -> Seen:
        plant(bench.folder)
        done = start(bench.folder, *self.arguments, **self.variables)
        assert not self.absent or not list((bench.folder / "golden").rglob(self.absent))
        return Seen(f"exit {done.returncode}", Blame.INPUT, (), (), done.stdout + done.stderr)


def _fault(
    arguments: tuple[str, ...],
    code: int,
    words: Words,
    plant: Callable[[Path], object] = as_it_is,
    *,
    absent: str = "",
    **variables: str,
) -> Fault:
    look = Suites(arguments, variables, absent)
    return Fault(Kind.GATE, plant, (Finding(look, "", Blame.INPUT, f"exit {code}", words=words),))


BF16 = ("--recipe", "bf16")
FAULTS = {
    "unknown recipe": _fault(("--recipe", "te-curent"), 4, "unknown recipe 'te-curent': did you mean te-current"),
    "unknown model": _fault(("--model", "tinny"), 4, "unknown model 'tinny': did you mean tiny"),
    "one seed": _fault(("--seeds", "1"), 4, "at least two different seeds"),
    "unknown corpus": _fault(("--corpus", "topcs", *BF16), 4, "unknown corpus 'topcs': did you mean topics"),
    "nothing ran": _fault(
        ("-m", "b200"), 1, "nothing ran, so nothing was checked: -m b200 asks for an sm_100 GPU; this machine is"
    ),
    "required cells that did not run": _fault(
        ("--recipe", "te-current", "--parity-resume", "--require", "te-current-*-native"),
        1,
        ("required cell te-current-nano-native was skipped: needs", "1 passed"),
        record_golden,
    ),
    "golden recorded in CI": _fault(("--golden-update",), 4, "CI never records goldens", absent="*.json", CI="true"),
    "golden of two seeds": _fault(
        ("--golden-update", "--seeds", "2"), 1, "2 seeds; golden/policy.toml asks for 3", absent="*.json"
    ),
    "golden of uncommitted code": _fault(
        ("--golden-update", "--seeds", "3"),
        4,
        "uncommitted changes",
        lambda project: (project / "dirty.txt").write_text("x"),
        absent="*.json",
    ),
}
