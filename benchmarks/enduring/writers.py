"""Writers that are killed, or whose disk becomes full."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

from fp8parity.records import manifest
from fp8parity.records.storage import load_record, write_json

from enduring.process import Disturbance, Done, command
from enduring.project import Writer, leftovers, state
from enduring.trial import Kinds, Outcome, Result, fault, lost

RECORD = Path("records/te-current-nano-emulated-topics-seed0.json")


def _write_record() -> int:
    write_json(RECORD, load_record(RECORD).model_copy(update={"seconds": 2.0}))
    return 0


def _write_manifest() -> int:
    [made] = manifest.load([Path("records")])
    manifest.write(Path("records"), made.model_copy(update={"ended": "later"}))
    return 0


WRITERS = {
    "record": Writer(_write_record, green=True),
    "manifest": Writer(_write_manifest, green=True),
    "merge to a folder": Writer(command("merge", "out/merged", "records", "merged.zip"), green=True, together=True),
    "merge to a .zip file": Writer(command("merge", "out.zip", "records", "merged.zip"), green=True),
    "golden store": Writer(command("golden", "store", "records"), green=False),
    "bounds --write": Writer(command("bounds", "records", "--write"), green=False),
    "report .html": Writer(command("judge", "records", "--report", "out.html"), green=True),
    "report .md": Writer(command("judge", "records", "--report", "out.md"), green=True),
    "report .json": Writer(command("judge", "records", "--report", "out.json"), green=True),
}


def _killed(writer: Writer, chance: Random, scratch: Path) -> Result:
    """Kill the writer, half of the times before an operation on files, half at any moment. Then the same command must work."""
    folder, (known, _) = writer.fresh(scratch), writer.undisturbed
    at_operation = Disturbance(kill_at=chance.randint(1, known.operations))
    done = writer.run(
        folder, at_operation if chance.random() < 0.5 else Disturbance(after=chance.uniform(0, 1.1 * known.seconds))
    )
    problem = writer.torn(folder) or writer.next_fails(folder)
    return fault(done) or (lost(problem) if problem else Result(Outcome.WHOLE))


def _filled(writer: Writer, chance: Random, scratch: Path) -> Result:
    """Let the disk be full: no file becomes larger than some bytes, or nothing can be made after some operation."""
    folder, (known, new) = writer.fresh(scratch), writer.undisturbed
    largest = max(len(new[p]) for p in writer.changed)
    by_size = Disturbance(
        largest=int(largest ** chance.random()) - 1
    )  # as often below 100 bytes, the size of a lock, as above
    done = writer.run(
        folder, by_size if chance.random() < 0.5 else Disturbance(full_at=chance.randint(1, known.operations))
    )
    problem = writer.torn(folder) or "".join(f"{name} is left" for name in leftovers(folder)[:1])
    found = fault(done) or (lost(problem) if problem else _told(writer, done, state(folder) == new))
    again = "" if found.outcome in (Outcome.LOST, Outcome.TRACEBACK) else writer.next_fails(folder)
    return lost(again) if again else found


def _told(writer: Writer, done: Done, written: bool) -> Result:
    """Whether the writer said the right thing: it wrote everything and ends with 0, or it ends with 2 and names what it could not write."""
    if done.code == 0:
        return Result(Outcome.WHOLE) if written else lost("exit status 0, and the files are not written")
    lines = done.err.splitlines()
    places = {str(p) for name in writer.changed for p in (Path(name), *Path(name).parents)} - {"."}
    if done.code != 2 or len(lines) != 1 or not any(p in lines[0] for p in places):
        return lost(f"exit status {done.code}, and no line names the file: {done.err.strip()[-160:]}")
    return Result(Outcome.REFUSED)


def _kinds(how: str) -> Kinds:
    tried = {"kill": _killed, "fill": _filled}[how]
    return {name: partial(tried, writer) for name, writer in WRITERS.items()}


KILL, FILL = _kinds("kill"), _kinds("fill")
