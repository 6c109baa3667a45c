"""The README's table of record sets, of losses or of speeds:
python benchmarks/readme_table.py golden/records/h200.zip golden/records/h200-variants.zip"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from fp8parity.judging import policy, references
from fp8parity.judging.evaluate import evaluate
from fp8parity.records import sets
from fp8parity.report import view
from fp8parity.report.evidence import Evidence
from fp8parity.report.view import Report, RowView

GOLDEN = Path(__file__).parents[1] / "golden"


def report(today: datetime.date, *records: Path) -> Report:
    stored, rules = references.load(GOLDEN), policy.load(GOLDEN, today)
    [found] = evaluate(sets.load(records), stored, rules)
    evidence = Evidence(found.machine.records, stored, rules)
    return view.build(found.verdicts, None, [], found.machine.environment.device, evidence)


def gaps(r: Report) -> list[str]:
    """Gaps in per cent with half their interval, by recipe and model."""
    columns = [i for i in range(len(r.matrix.columns)) if any(_gap(cells[i]) != "-" for _, cells in r.matrix.rows)]
    heads = ["recipe", *(f"gap at {r.matrix.columns[i]}, %" for i in columns)]
    rows = [[name, *(_gap(cells[i]) for i in columns)] for name, cells in r.matrix.rows]
    return _markdown(heads, [row for row in rows if set(row[1:]) != {"-"}])


def speeds(r: Report) -> list[str]:
    """Speed and peak memory of a step relative to BF16's, by recipe and model, the slowest model first."""
    models = list(dict.fromkeys(s.model for s in sorted(r.speeds, key=lambda s: s.bf16_tokens_per_second)))
    labels = sorted({s.label for s in r.speeds})
    found = {(s.label, s.model): f"{s.ratio:.2f}x, {s.memory / s.bf16_memory:.2f}x" for s in r.speeds}
    return _markdown(["recipe", *models], [[label, *(found.get((label, m), "-") for m in models)] for label in labels])


def _markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *(f"| {' | '.join(row)} |" for row in rows)]


def _gap(cell: RowView | None) -> str:
    if cell is None or cell.mean is None or cell.high is None:
        return "-"
    text = f"{100 * cell.mean:+.3f} ± {100 * (cell.high - cell.mean):.3f}"
    return text if cell.parity == "pass" else f"{text} ({cell.parity})"


if __name__ == "__main__":
    made = report(datetime.date.today(), *map(Path, sys.argv[1:]))
    print(made.sentence)
    print("\n".join(speeds(made) if made.speeds else gaps(made)))
