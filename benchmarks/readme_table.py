"""The README's table of a record set: python benchmarks/readme_table.py golden/records/h200.zip"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

from fp8parity.judging import goldens, policy
from fp8parity.judging.evaluate import evaluate
from fp8parity.records import sets
from fp8parity.report import view
from fp8parity.report.evidence import Evidence
from fp8parity.report.view import Report, RowView, SpeedView

GOLDEN = Path(__file__).parents[1] / "golden"


def report(records: Path, today: datetime.date) -> Report:
    stored, rules = goldens.load(GOLDEN), policy.load(GOLDEN, today)
    [found] = evaluate(sets.load([records]), stored, rules)
    evidence = Evidence(found.machine.records, stored, rules)
    return view.build(found.verdicts, None, [], found.machine.environment.device, evidence)


def table(r: Report) -> list[str]:
    """Gaps in per cent with half their interval; SNR of the gradients at the initial state, speed and memory of the largest model."""
    largest = r.matrix.columns[-1]
    speeds = {s.label: s for s in r.speeds if s.model == largest}
    heads = ["recipe", *(f"gap at {c}, %" for c in r.matrix.columns), "SNR, dB", "speed", "memory"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, cells in r.matrix.rows:
        fields = [name, *(_gap(c) for c in cells), cells[-1].snr if cells[-1] else "-", *_speed(speeds.get(name))]
        lines.append(f"| {' | '.join(fields)} |")
    return lines


def _gap(cell: RowView | None) -> str:
    if cell is None or cell.mean is None or cell.high is None:
        return "-"
    text = f"{100 * cell.mean:+.2f} ± {100 * (cell.high - cell.mean):.2f}"
    return text if cell.parity == "pass" else f"{text} ({cell.parity})"


def _speed(s: SpeedView | None) -> tuple[str, str]:
    return (f"{s.ratio:.2f}x", f"{s.memory / s.bf16_memory:.2f}x") if s else ("-", "-")


if __name__ == "__main__":
    made = report(Path(sys.argv[1]), datetime.date.today())
    print(made.sentence)
    print("\n".join(table(made)))
