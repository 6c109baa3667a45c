"""List the rows and goldens that no record of a set needed.

Those that a complete run did not need are obsolete, or a check did not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from fp8parity.judging import gradients
from fp8parity.judging.evaluate import Evaluation
from fp8parity.judging.policy import TABLES, Policy, last
from fp8parity.judging.policy.selectors import SELECTORS, Written
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.numbers import NumberKey
from fp8parity.judging.verdict import LOSS
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Measurement
from fp8parity.records.sets import Machine
from fp8parity.records.times import TRAINING_STEP

_JudgedNumber = tuple[Cell, str, Measurement]
_ALWAYS = ("extends", "alike", "threshold")
"""The tables with rows that count without a record."""


def unused(evaluations: Sequence[Evaluation], goldens: Goldens, policy: Policy) -> list[str]:
    """Return one line for each row, golden, number or claim that no record needed."""
    machines, verdicts = [e.machine for e in evaluations], [v for e in evaluations for v in e.verdicts]
    numbers = [number for m in machines for number in _numbers(m)]
    known = policy.known.entries if policy.known else ()
    rows = {id(row) for row in _needed(policy, machines, numbers)}
    rows |= {id(k) for k in known if any(k.covers(v.cell, v.check) for v in verdicts)}
    tables = [*((table, getattr(policy, table)) for table in TABLES if table not in _ALWAYS), ("known", known)]
    written = [(table, row.written or i, row) for table, found in tables for i, row in enumerate(found, 1)]
    lines = [f"[[{table}]] row {i}: {_words(row)}" for table, i, row in written if id(row) not in rows]
    trained = {(c.model, c.corpus) for m in machines for c in m.runs}
    lines += [f"golden of {m} on {c}" for m, c in goldens.loss if (m, c) not in trained]
    timed = {(m.environment.device, c.model, what) for m in machines for c, what in m.timings}
    lines += [
        f"throughput golden of {m} on {gpu}" + f", {what}" * (what != TRAINING_STEP)
        for gpu, m, what in goldens.throughput
        if (gpu, m, what) not in timed
    ]
    multiplied = {(m.environment.device, c.model) for m in machines for c, _ in m.gemms}
    lines += [f"golden of the GEMMs of {m} on {gpu}" for gpu, m in goldens.gemms if (gpu, m) not in multiplied]
    keys = {NumberKey.of(*number) for number in numbers}
    for name, table in goldens.numbers.tables.items():
        unneeded = [key for key in table if key not in keys]
        lines += [f"{len(unneeded)} of {len(table)} numbers of {name}.csv, first {unneeded[0]}"] if unneeded else []
    used = [(table, i, row) for table, i, row in written if id(row) in rows]
    return lines + _unknown_names(used, {v.cell for v in verdicts}, {v.check for v in verdicts})


def _needed(policy: Policy, machines: Sequence[Machine], numbers: Sequence[_JudgedNumber]) -> Iterator[object]:
    """Yield the rows that judge these records, or None where there is none."""
    for cell, check, number in numbers:
        yield from policy.rows_for(cell, check).lookup(number)
        yield from (row for row in policy.trend if row.matches(cell, check, number))
    metrics = {number.metric for *_, number in numbers}
    yield from (row for row in policy.metric if not metrics.isdisjoint(row.name))
    for m in machines:
        yield from (policy.complete_row(r.cell, r.check) for r in m.checks.values())
        cells = {
            "loss": {*m.runs},
            "golden": {*m.runs},
            "speed": {c for c, _ in m.timings},
            "gemm": {c for c, _ in m.gemms},
        }
        yield from (last(getattr(policy, table), cell) for table, found in cells.items() for cell in found)
        recipes = {cell.recipe for cell in m.runs}
        yield from (row for row in policy.equal if len(recipes.intersection(row.recipe)) > 1)


def _unknown_names(rows: Sequence[tuple[str, int, Written]], cells: Set[Cell], checks: Set[str]) -> list[str]:
    """Return names in used rows that no recorded cell or check has."""
    seen = {key: {getattr(cell, key) for cell in cells} for key in SELECTORS} | {"check": checks}
    found: dict[str, list[int]] = {}
    for table, i, row in rows:
        for key, known in seen.items():
            names = getattr(row, key, ())
            for value in sorted({names} if isinstance(names, str) else set(names)):
                if value not in known:
                    found.setdefault(f"{key} {value!r} in [[{table}]] row", []).append(i)
    return [f"{text} {', '.join(map(str, dict.fromkeys(numbers)))}" for text, numbers in found.items()]


def _numbers(machine: Machine) -> Iterator[_JudgedNumber]:
    """Yield every judged number, with its cell and check.

    The rows of the first steps of runs are found with a stand-in.
    """
    yield from ((r.cell, r.check, m) for r in machine.checks.values() for m in r.values)
    yield from ((r.cell, LOSS, m) for r in gradients.numbers_of(machine) for m in r.values)
    for cell in machine.runs:
        metric = gradients.TOTAL if cell.is_control else gradients.SOUND
        yield cell, LOSS, Measurement(metric=metric, where=cell.model, value=1.0)


def _words(row: Written) -> str:
    """Return the keys and values of a row, without its reason."""
    given = row.model_dump(exclude={"why"}, exclude_defaults=True)
    return ", ".join(f"{k} = {v}" for k, v in given.items())
