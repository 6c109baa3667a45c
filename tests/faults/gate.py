"""Faults of the gate's input on the command line: records, goldens, policies and known failures. Exit status and sentence are asserted."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fp8parity.cli import main
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import AnyRecord, Measurement, Measurements
from fp8parity.records.storage import load_records, name_of, write_json
from sessions import GOLDEN

from faults.fault import Bench, Blame, Fault, Finding, Kind, Seen

Make = Callable[..., Any]
Plant = Callable[[Path, Make], list[str]]
"""Writes files into a folder and returns the arguments of ``fp8parity``."""


@dataclass(frozen=True)
class Command:
    """The command fp8parity on files that a plant writes. Its status is the exit status."""

    where: str = "fp8parity judge"
    check: str = "gate"

    def prepare(self, bench: Bench) -> None:
        for name in ("CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
            bench.patch.delenv(name, raising=False)

    def __call__(self, plant: Plant, bench: Bench) -> Seen:
        arguments = plant(bench.folder, bench.make)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        return Seen(f"exit {code}", Blame.INPUT, (), (), out.getvalue() + err.getvalue())


def number(make: Make, value: float, **changes: object) -> Measurements:
    """A record of one number of te-current: 28.5 dB are right. It is of an older schema, so it may lack the others."""
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED, corpus="topics")
    row = Measurement(metric="fprop sqnr", where="gaussian", value=value)
    made = Measurements(partial=True, cell=cell, check="gemm", values=[row], provenance=make().provenance, session="s")
    return made.model_copy(update=changes)


def judge(folder: Path, records: list[AnyRecord], golden: Path = GOLDEN, *more: str) -> list[str]:
    for record in records:
        write_json(folder / "set" / name_of(record), record)
    return ["judge", str(folder / "set"), "--golden-dir", str(golden), *more]


def _valued(folder: Path, make: Make, value: float) -> list[str]:
    return judge(folder, [number(make, value)])


def _text(change: Callable[[str], str]) -> Plant:
    """A record whose file was changed after it was written."""

    def plant(folder: Path, make: Make) -> list[str]:
        arguments = judge(folder, [number(make, 28.5)])
        [path] = (folder / "set").glob("*.json")
        path.write_text(change(path.read_text()))
        return arguments

    return plant


def fault(plant: Plant, words: str | tuple[str, ...], code: int, where: str = "fp8parity judge") -> Fault:
    finding = Finding(Command(where), "", Blame.INPUT, f"exit {code}", words=words)
    return Fault(Kind.GATE, plant, (finding,))


red, refused = partial(fault, code=1), partial(fault, code=2)


def _whole(folder: Path, make: Make, lost: Callable[[Measurement], bool], check: str = "gemm") -> list[str]:
    """A check of te-current, recorded on a Xeon, as a record of today without the numbers that are ``lost``."""
    records = load_records(GOLDEN / "records" / "xeon.zip")
    [found] = [
        r
        for r in records
        if isinstance(r, Measurements) and (r.cell.id, r.check) == ("te-current-tiny-emulated", check)
    ]
    kept = [m for m in found.values if not lost(m)]
    return judge(folder, [found.model_copy(update={"values": kept, "partial": False})])


FAULTS = {
    "metric lost from a record": red(
        partial(_whole, lost=lambda m: m.metric == "fprop gain"),
        (
            "te-current-tiny-emulated: gemm of one linear error: the record lacks 7 numbers that golden/numerics or the policy names",
            "fprop gain @ gaussian",
        ),
    ),
    "metric of a rule lost from a record": red(
        partial(_whole, lost=lambda m: m.metric == "race difference", check="state"),
        "the record lacks 1 number that golden/numerics or the policy names: race difference",
    ),
    "place lost from a record": red(
        partial(_whole, lost=lambda m: m.place == "fprop sqnr @ zero-row"),
        "the record lacks 1 number that golden/numerics or the policy names: fprop sqnr @ zero-row",
    ),
    "number below its limits": red(
        partial(_valued, value=24.0), ("24 dB is below [", "1 of 1 numbers are outside their bounds")
    ),
    "number that is NaN": red(partial(_valued, value=math.nan), "nan dB is not in ["),
    "record without numbers": red(
        lambda f, make: judge(f, [number(make, 1.0, values=[])]), "the check measured nothing"
    ),
    "number without a row": red(
        lambda f, make: judge(f, [number(make, 1.0, check="gem")]), "no row of the policy mentions 1 of 1 numbers"
    ),
    "number that nobody measured": red(
        lambda f, make: judge(
            f, [number(make, 28.5, values=[Measurement(metric="fprop sqnr", where="nowhere", value=28.5)])], GOLDEN
        ),
        "1 of 1 numbers could not be judged: they have no rule and no measured number",
    ),
    "record edited by hand": refused(
        _text(lambda t: t.replace("28.5", "28.6")), "its checksum does not match its content; it was edited or damaged"
    ),
}
