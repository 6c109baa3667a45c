"""Endurance: hundreds of trials in which a result could be lost, or a wrong one be believed, are made and counted.

    python benchmarks/endurance.py --write docs/endurance.md

* kill: a process that writes is killed at a random moment.
* fill: its disk becomes full at a random byte or operation.
* tamper: one thing in a record, manifest, golden, table of numbers or .zip file is changed.
* race: several processes work on the same files.

Trials are made by chance from a seed. The exit status is 1 if anything was lost or a traceback was seen.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from random import Random

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "fixtures")]

from enduring import project, races, sessions, tampering, writers  # noqa: E402 - the path of the tests comes first
from enduring.trial import Kinds, Outcome, Trial, notes, table  # noqa: E402 - the same
from fp8parity.records import atomic  # noqa: E402 - the same

FAMILIES: dict[str, tuple[Kinds, int]] = {
    "kill": (writers.KILL, 144),
    "fill": (writers.FILL, 126),
    "tamper": (tampering.KINDS, 220),
    "race": (races.KINDS, 60),
    "kill pytest": (sessions.KINDS, 6),
}
"""The kinds of trials of each family, and the number of its trials."""
BAD = (Outcome.LOST, Outcome.TRACEBACK)


def trials(families: Sequence[str], share: float, seed: int) -> list[Trial]:
    """Make the trials of these families, a ``share`` of their numbers. The kinds of a family take turns."""
    made = []
    for family in families:
        kinds, count = FAMILIES[family]
        names = list(kinds)
        for number in range(max(1, round(share * count))):
            what = names[number % len(names)]
            with tempfile.TemporaryDirectory(prefix="endurance-") as scratch:
                result = kinds[what](Random(f"{seed} {family} {number}"), Path(scratch))
            made.append(Trial(family, what, number, result))
            if result.outcome in BAD:
                print(f"{family} {number}, {what}: {result.outcome}: {result.note}", flush=True)
    return sorted(made, key=lambda t: (families.index(t.family), list(FAMILIES[t.family][0]).index(t.what)))


def page(made: Sequence[Trial], command: str, seconds: float) -> str:
    """The page with the table, the classes of what is not visible, and what was lost."""
    import torch
    from fp8parity.training import provenance

    packages = (f"{p} {metadata.version(p)}" for p in ("torch", "pytest", "pytest-xdist"))
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    cpu, (commit, dirty) = provenance.device_name(torch.device("cpu")), provenance.commit()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    bad = notes(made, *BAD)
    return "\n".join(
        [
            "# Endurance",
            "",
            "This command wrote the page. Do not edit it.",
            "",
            "```sh",
            command,
            "```",
            "",
            f"{now}, commit {commit[:12]}{' with uncommitted changes' if dirty else ''}: {len(made)} trials in {seconds:.0f} s on",
            f"{os.cpu_count()} cores ({cpu}, {platform.platform()}), {versions}.",
            "",
            TEXT,
            "",
            table(made),
            "",
            "## What nothing could show",
            "",
            *(notes(made, Outcome.NOT_VISIBLE) or ["Nothing."]),
            "",
            "## What was lost",
            "",
            *(bad or ["Nothing."]),
            "",
        ]
    )


TEXT = """\
* **kill**: a process that writes gets SIGKILL, half of the times before an operation on files, half at any moment. Afterwards each file is
  the old or the whole new one (a merged folder is whole or absent), the same command works, and nothing of the killed one stays.
* **fill**: the disk is full at a random byte, or from a random operation on files. The command ends with 2 and one line that names what it
  could not write, the old files are whole, and the same command works when there is room.
* **tamper**: one change in a record, manifest, golden, table of numbers or .zip file. `judge` refuses it with 2 and a line that names the
  file, or is red. Where it is green, the content is unchanged (whole), or the change belongs to a class below (not visible).
* **race**: two to four processes at once. No update is lost, one merge wins and the others are told, and readers see whole files.
* **kill pytest**: a session with `-n 2` is killed: pytest, a worker, or all. Without its manifest its records are no release, and a
  session with `--parity-resume` gives the verdicts of an undisturbed one.

*Lost* is everything else."""


def main(argv: Sequence[str] | None = None) -> int:
    """Make the trials and print the page. Return 0 if nothing was lost, otherwise 1."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--family", action="append", default=[], choices=list(FAMILIES), help="only this family (repeatable)"
    )
    made.add_argument(
        "--share", type=float, default=1.0, help="of the number of trials (default: 1, which is 556 trials)"
    )
    made.add_argument("--seed", type=int, default=1, help="of the chance (default: 1)")
    made.add_argument("--write", type=Path, help="write the page into this file")
    args = made.parse_args(argv)
    start = time.monotonic()
    try:
        found = trials(args.family or list(FAMILIES), args.share, args.seed)
    finally:
        project.remove_templates()
        sessions.remove_template()
    given = sys.argv[1:] if argv is None else argv
    text = page(found, " ".join(["python benchmarks/endurance.py", *given]), time.monotonic() - start)
    if args.write:
        atomic.write(args.write, text)
    print(text)
    return int(any(t.result.outcome in BAD for t in found))


if __name__ == "__main__":
    raise SystemExit(main())
