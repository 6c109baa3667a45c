"""Print the README's table of record sets, of losses or of speeds.

python benchmarks/readme_table.py golden/records/h200.zip
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.verdict import SpeedDetail
from fp8parity.records import sets
from fp8parity.records.cell import Cell
from fp8parity.report.summary import CellRow, Evidence, Report

GOLDEN = Path(__file__).parents[1] / "golden"


def report(today: datetime.date, *records: Path) -> Report:
    stored, rules = references.load(GOLDEN), policy.load(GOLDEN, today)
    [found] = evaluate(sets.load(records), stored, rules)
    evidence = Evidence(found.machine.records, stored, rules)
    return Report(found.verdicts, None, [], found.machine.environment.device, evidence)


def gaps(r: Report) -> list[str]:
    """Gaps in per cent with half their interval, by recipe and model."""
    found = {(row.label, row.model): _gap(row) for row in r.rows}
    models = list(dict.fromkeys(model for (_, model), text in found.items() if text != "-"))
    heads = ["recipe", *(f"gap at {model}, %" for model in models)]
    rows = [
        [label, *(found.get((label, m), "-") for m in models)] for label in dict.fromkeys(row.label for row in r.rows)
    ]
    return _markdown(heads, [row for row in rows if set(row[1:]) != {"-"}])


def speeds(r: Report) -> list[str]:
    """Speed and peak memory of a step relative to BF16's, by recipe and model, the slowest model first."""
    timed = sorted(_timed(r), key=lambda item: item[1].bf16_tokens_per_second)
    models = list(dict.fromkeys(cell.model for cell, _ in timed))
    labels = sorted({cell.label for cell, _ in timed})
    found = {(c.label, c.model): f"{s.ratio:.2f}x, {s.memory / s.bf16_memory:.2f}x" for c, s in timed}
    return _markdown(["recipe", *models], [[label, *(found.get((label, m), "-") for m in models)] for label in labels])


def _timed(r: Report) -> list[tuple[Cell, SpeedDetail]]:
    return [(v.cell, v.speed) for v in r.verdicts if v.speed]


def _markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _gap(cell: CellRow) -> str:
    if cell.mean is None or cell.high is None:
        return "-"
    text = f"{100 * cell.mean:+.3f} ± {100 * (cell.high - cell.mean):.3f}"
    return text if cell.parity == "pass" else f"{text} ({cell.parity})"


if __name__ == "__main__":
    made = report(datetime.date.today(), *map(Path, sys.argv[1:]))
    print(made.sentence)
    print("\n".join(speeds(made) if _timed(made) else gaps(made)))
