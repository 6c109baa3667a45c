"""What ``judge`` believes of a set in which one thing was changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from fp8parity.judging import references
from fp8parity.judging.references import Goldens
from fp8parity.records import manifest, sets

from enduring.changes import BAND, CHANGES, Apply, Change
from enduring.process import Done, Work, command, run
from enduring.project import Writer
from enduring.trial import Kinds, Outcome, Result, fault, lost

JUDGE = Writer(command("judge", "records"), green=True)
Content = tuple[object, object, Goldens]


def content(folder: Path) -> Content:
    """Everything that is read: records and manifests of both sets, and goldens."""
    both = [folder / "records", folder / "merged.zip"]
    return (
        [sorted(sets.load([p]), key=repr) for p in both],
        [manifest.load([p]) for p in both],
        references.load(folder / "golden"),
    )


def _tables_alone(found: Content, known: Content, out: str) -> str:
    """The class of a change of tables that no verdict can show, or nothing."""
    (records, manifests, now), (*sound, before) = found, known
    tables, others = now.numbers.tables, before.numbers.tables
    if [records, manifests] != sound or now.loss != before.loss or tables.keys() != others.keys():
        return ""
    if not all(
        t.keys() == others[n].keys() and all(abs(t[k].value - others[n][k].value) <= BAND for k in t)
        for n, t in tables.items()
    ):
        return ""
    if now.numbers.inventories != before.numbers.inventories:
        lacking = now.numbers.inventories.configurations.keys() >= before.numbers.inventories.configurations.keys()
        return (
            "the judge says that nothing is stored for a recipe" if UNSTORED in out else UNKNOWN_KEY if lacking else ""
        )
    return (
        "the text of a source decides nothing"
        if now.numbers.sources != before.numbers.sources
        else "a number moved inside its band"
    )


UNSTORED = "stored; only the seeds' were compared"
UNKNOWN_KEY = "a key of a configuration is no longer stored, and what nobody has stored shows nothing"


def _judge(path: Path, *options: str) -> Work:
    return command("judge", "merged.zip" if path.suffix == ".zip" else "records", *options)


def _seen(change: Change, done: Done, folder: Path) -> Result:
    """What the judge made of the change."""
    if done.code == 2:
        lines = done.err.splitlines()
        named = len(lines) == 1 and change.path.name in lines[0]
        return (
            Result(Outcome.REFUSED)
            if named
            else lost(f"the line of refusal does not name the file: {done.err.strip()[-160:]}")
        )
    if done.code == 1:
        return Result(Outcome.RED)
    found, known = content(folder), content(JUDGE.fresh(folder / "sound"))
    if found == known:
        return Result(Outcome.WHOLE)
    why = change.why or _tables_alone(found, known, done.out)
    if not why or change.said not in done.out:
        return lost("green" if not why else f"green, and the judge does not say {change.said!r}")
    if change.strict and run(_judge(change.path, change.strict), folder).code != 1:
        return lost(f"green with {change.strict}")
    return Result(Outcome.NOT_VISIBLE, why)


def _trial(apply: Apply) -> Callable[[Random, Path], Result]:
    def trial(chance: Random, scratch: Path) -> Result:
        folder = JUDGE.fresh(scratch)
        change = apply(chance, folder)
        done = run(_judge(change.path), folder)
        return fault(done) or _seen(change, done, folder)

    return trial


KINDS: Kinds = {name: _trial(apply) for name, apply in CHANGES.items()}
