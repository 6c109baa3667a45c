"""Made-up verdicts on one check, for the tests of reports."""

from __future__ import annotations

from fp8parity.judging.verdict import Status, Verdict
from fp8parity.records.cell import Cell, Execution


def verdict(status: Status, **changes: object) -> Verdict:
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="topics")
    return Verdict(
        cell=cell, check="gradients", status=status, headline="3 of 21 numbers are outside their bounds"
    ).model_copy(update=changes)
