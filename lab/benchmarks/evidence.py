"""Measure what the loss gate is worth, next to the rules of other projects.

Writes lab/docs/evidence/loss-gate.md. No torch.

    python lab/benchmarks/evidence.py SET... --write lab/docs/evidence/loss-gate.md

A set is a folder or a .zip file of records. Simulations have fixed seeds, so the same sets give the same text.
``peers.py`` holds the rules, ``trials.py`` the recorded runs, ``simulated.py`` the simulated gates.
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import jinja2
import numpy as np
import simulated
import trials
from fp8parity.judging import policy, references
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.records import files
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import load_records
from head_to_head import OURS, Count, Judged, count, gradient_errors, green_on_nan, judged, table
from trials import DEVICES, KINDS, REPLICAS, SOUND

TARGET = 1 / 1000
"""The largest share of sound gates that may be red."""


def behind(m: trials.Model) -> list[str]:
    """Return the records behind a model: its golden, devices, distinct runs of recipes, and planted faults."""
    devices = ", ".join(dict.fromkeys(s.environment.device for s in m.sessions))
    cells = {r.cell for r, _ in m.pairs}
    return [m.title, f"{len(m.golden.seeds)} seeds", devices, str(len(m.pairs)), str(len(cells)), str(len(m.faults))]


def wrong(found: Sequence[Judged]) -> list[list[str]]:
    """Return what this project misses, and its false alarms."""
    errors = {True: "missed", False: "false alarm"}
    return [
        [errors[j.trial.should_be_red], j.model, f"{j.trial.kind}: {j.trial.name}", f"`{j.verdict.status}`"]
        for j in found
        if j.trial.should_be_red != j.red[OURS]
    ]


def smallest_gaps(known: simulated.Noise, stored: Goldens, draws: int) -> Iterator[list[str]]:
    """Iterate over the smallest constant gaps that are found in BF16 and in one recipe."""
    carrier = min(known.cells, key=lambda c: (c.recipe != trials.CARRIER, c.id))
    for cell in (carrier, known.control):
        gap = simulated.smallest_gap(known, cell, stored, draws)
        yield [known.model.title, cell.recipe, "not up to 10%" if gap is None else f"{gap:+.3%}"]


def alarms(known: simulated.Noise, stored: Goldens, gates: int) -> tuple[simulated.Gates, list[str]]:
    """Simulate sound gates of a model. Return them and their row.

    The row has the red gates with the stored bands, and with bands of other seeds.
    """
    found, other = simulated.gates(known, stored, gates), simulated.held_out(known.model)
    second = simulated.gates(other, stored, gates) if other else None
    causes = found.causes + (second.causes if second else type(found.causes)())
    named = ", ".join(f"{name} ({n})" for name, n in causes.most_common()) or "-"
    return found, [known.model.title, str(found.cells), known.seeds, red(found), red(second) if second else "-", named]


def red(found: simulated.Gates) -> str:
    return Count(int(found.red.sum()), len(found.red)).text()


def page(
    paths: Sequence[Path], sets: Sequence[Sequence[AnyRecord]], stored: Goldens, rules: Policy, gates: int, draws: int
) -> str:
    """Return the page as Markdown."""
    models = trials.models(sets, stored, rules)
    results = [j for model in models for j in judged(model, stored)]
    noises = [n for n in map(simulated.noise, models) if n]
    simulations = [alarms(n, stored, gates) for n in noises]
    rows = [row for _, row in simulations]
    if len(rows) > 1:
        every = np.logical_or.reduce([found.red for found, _ in simulations])
        cells = sum(found.cells for found, _ in simulations)
        rows.append(["all of these", str(cells), "", Count(int(every.sum()), len(every)).text(), "-", "-"])
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        (Path(__file__).parent / "evidence.md.j2").read_text(encoding="utf-8")
    )
    text = template.render(
        command=f"python lab/benchmarks/evidence.py {' '.join(map(str, paths))} --write lab/docs/evidence/loss-gate.md",
        models=[behind(m) for m in models],
        kinds=KINDS,
        total=table(results),
        wrong=wrong(results),
        undecided=sum(j.trial.should_be_red and j.verdict.status == "inconclusive" for j in results),
        nan=green_on_nan(models[0], stored),
        gradients=gradient_errors(sets),
        smallest=[row for n in noises for row in smallest_gaps(n, stored, draws)],
        alarms=rows,
        clean=count(results, OURS, SOUND, REPLICAS, DEVICES),
        target=TARGET,
        gates=gates,
        draws=draws,
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page (default: print it)")
    parser.add_argument("--gates", type=int, default=3000, help="simulated gates of a model (default: 3000)")
    parser.add_argument("--draws", type=int, default=400, help="simulated sessions of a gap (default: 400)")
    args = parser.parse_args()
    stored = references.load(args.golden_dir)
    rules = policy.load(args.golden_dir, datetime.date.today()).model_copy(update={"known": None})
    made = page(args.records, [load_records(p) for p in args.records], stored, rules, args.gates, args.draws)
    files.write(args.write, made) if args.write else print(made)


if __name__ == "__main__":
    main()
