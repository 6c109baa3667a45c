"""The project of the trials: records, goldens and a manifest that are green, and the same before its goldens were stored."""

from __future__ import annotations

import functools
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import inputs
import trajectories
from fp8parity.records import manifest, sets
from fp8parity.records.atomic import ENDING
from fp8parity.records.manifest import Manifest, Selected
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import load_records, name_of

from enduring.process import NONE, Disturbance, Done, Work, command, run

State = dict[str, bytes]
"""The files of a folder by their path. What writers leave beside them is left out."""
TESTS = {"trajectory": "test_loss_parity", "measurements": "test_numerics", "throughput": "test_throughput"}


def state(folder: Path) -> State:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files if ENDING not in str(p.relative_to(folder))}


def leftovers(folder: Path) -> list[str]:
    """What writers have left: temporary files and folders, and locks."""
    return [str(p.relative_to(folder)) for p in folder.rglob(f".*{ENDING}")]


def whole(records: list[AnyRecord]) -> Manifest:
    """The manifest of a session that made all of these records."""
    judged: dict[tuple[str, str], list[str]] = {}
    for r in records:
        if not getattr(r, "variant", ""):
            judged.setdefault((r.cell.id, TESTS[r.kind]), []).append(name_of(r))
    selected = [
        Selected(cell=cell, test=test, outcome="passed", checks=[test], records=names)
        for (cell, test), names in judged.items()
    ]
    return inputs.session_of(records[0].provenance).model_copy(update={"selected": selected})


@functools.cache
def template(green: bool) -> Path:
    """The project as a folder that is only copied. If it is not ``green``, its goldens and numbers were not yet stored from its records."""
    folder = Path(tempfile.mkdtemp(prefix="endurance-"))
    if green:
        shutil.copytree(template(False), folder, dirs_exist_ok=True)
        for arguments in (["golden", "store", "records"], ["bounds", "records", "--write"]):
            must(run(command(*arguments), folder))
        must(run(command("judge", "records", "--release"), folder))
        return folder
    inputs.make(folder, trajectories.made)
    shutil.rmtree(folder / ".git")
    (folder / "set.zip").unlink()  # its times differ from project to project; ``merge`` makes one without times
    records = load_records(folder / "records")
    manifest.write(folder / "records", whole(records))
    sets.save(records, folder / "merged.zip", [whole(records)])
    for ending in ("html", "md", "json"):
        (folder / f"out.{ending}").write_text("old")
    return folder


def must(done: Done) -> Done:
    """The process, if it ended well. Raises ``RuntimeError`` otherwise: without a sound project no trial says anything."""
    if done.code != 0 or done.err:
        raise RuntimeError(f"the project of the trials is not sound: {done}")
    return done


def remove_templates() -> None:
    for green in (True, False):
        shutil.rmtree(template(green), ignore_errors=True)
    template.cache_clear()


@dataclass(frozen=True)
class Writer:
    """A command that writes into the project. ``green`` names its template. If ``together`` is true, it writes all files or none."""

    work: Work
    green: bool
    together: bool = False

    def fresh(self, folder: Path) -> Path:
        return Path(shutil.copytree(template(self.green), folder / "project"))

    def run(self, folder: Path, disturbance: Disturbance = NONE) -> Done:
        return run(self.work, folder, disturbance)

    @functools.cached_property
    def old(self) -> State:
        return state(template(self.green))

    @functools.cached_property
    def undisturbed(self) -> tuple[Done, State]:
        """How the command ends and what it leaves, if nothing happens to it."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.fresh(Path(scratch))
            return must(self.run(folder)), state(folder)

    @property
    def changed(self) -> list[str]:
        """The files that the command writes."""
        new = self.undisturbed[1]
        return [p for p in new if self.old.get(p) != new[p]]

    def torn(self, folder: Path) -> str:
        """Which file is neither the old nor the new one, or nothing."""
        found, new = state(folder), self.undisturbed[1]
        if self.together and found not in (self.old, new):
            return "a part of the files is there"
        return next(
            (f"{p} is torn" for p in {**found, **self.old} if found.get(p) not in (self.old.get(p), new.get(p))), ""
        )

    def next_fails(self, folder: Path) -> str:
        """Why the same command does not work now, or nothing. A merge whose target is there and whole may say so."""
        found, new = state(folder), self.undisturbed[1]
        done = self.run(folder)
        there = (
            found == new and done.code == 2 and any(t in done.err for t in ("holds records already", "is not empty"))
        )
        if not (there or (done.code, done.err) == (0, "")):
            return f"the next command fails: {done.code}, {done.err.strip()}"
        if state(folder) != new:
            return "the next command writes other files than without the disturbance"
        left = [] if there else leftovers(folder)
        return f"{left[0]} stays for ever" if left else ""
