"""What the loss gate is worth, beside the rules of other projects, from recorded and simulated runs. It writes docs/evidence.md. No torch.

    python benchmarks/evidence.py SET... --write docs/evidence.md
    python benchmarks/evidence.py SET... --table

A set is a folder or a .zip file of records. ``--table`` prints the table of the README alone. Simulations have fixed seeds, so the same
sets give the same text. ``peers.py`` holds the rules, ``trials.py`` the recorded runs, ``simulated.py`` the simulated gates. This is a
script, not a subcommand of ``fp8parity``: it says what this project's own gate is worth, and a user has no such records.
"""

from __future__ import annotations

import argparse
import datetime
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import numpy as np
import pairs
import severity
import simulated
import trials
from fp8parity.judging import policy, references
from fp8parity.judging.calibration import Calibration, Line, calibrate, canary_ratios
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.judging.stats import WINDOW, seeds_needed
from fp8parity.records import atomic
from fp8parity.records.schema import AnyRecord, Measurements, Trajectory
from fp8parity.records.storage import load_records
from head_to_head import KINDS, OURS, Count, count, gradient_errors, head_to_head, judged, nan_run, short_table, shown
from trials import DEVICES, REPLICAS, SOUND

TARGET = 1 / 1000
"""The largest share of sound gates that may be red."""
HELD_OUT = "bands of other seeds"
WAYS = (simulated.WHOLE, simulated.MIXED, HELD_OUT)
CANARY = "canary"


@dataclass(frozen=True)
class Severity:
    """Detection by severity at one model, in one recipe or in BF16 (``place``). ``rows`` are those of the table."""

    model: str
    place: str
    draws: int
    rows: list[list[str]]


def severities(known: simulated.Noise, stored: Goldens, draws: int) -> Iterator[Severity]:
    """The smallest dose and the latest onset of each fault that is found in 95% of the draws."""
    for in_bf16 in (False, True):
        found = severity.detector(known, stored, draws, in_bf16=in_bf16)
        if found:
            rows = [_severity(found, fault, known.model.golden.tail, draws) for fault in severity.faults(known.model)]
            yield Severity(known.model.title, "BF16" if in_bf16 else found.cell.recipe, draws, rows)


def _severity(found: severity.Detector, fault: severity.Fault, tail: int, draws: int) -> list[str]:
    constant = fault.name == severity.CONSTANT
    dose = severity.smallest(lambda by: found.share(fault.scaled(by)), 1e-6, 1.0 if constant else 30.0)
    steps = range(0, len(fault.gap.loss), WINDOW)
    onset = None if constant else severity.latest(lambda step: found.share(fault.since(step)), steps)
    if dose is None:
        cells = ["-" if constant else "not up to 30 times", *["-"] * 4]
    else:
        tail_gap, widest = (
            dose * float(fault.gap.loss[-tail:].mean()),
            dose * float(abs(severity.windows(fault.gap.loss)).max()),
        )
        found_there = found.judged(fault.scaled(dose))
        red, undecided = Count(int(found_there.red.sum()), draws), int((found_there.status == "inconclusive").sum())
        cells = ["-" if constant else f"{dose:.2g} x", f"{tail_gap:+.3%}", f"{widest:.3%}", red.text(), str(undecided)]
    last = "-" if constant else "not found" if onset is None else f"step {onset} of {len(fault.gap.loss)}"
    return [fault.name, str(fault.n) if fault.n else "-", *cells, last]


def power(known: simulated.Noise) -> list[str]:
    """What ``fp8parity power`` says about te-current: the seeds that a pass needs, for true gaps of 0 to 75% of the margin."""
    carrier = min(known.cells, key=lambda c: (c.recipe != trials.CARRIER, c.id))
    row, spread = known.model.rules.loss_row(carrier), known.model.golden.spread(carrier.recipe)
    sd = spread.tail_sd if spread else row.sd
    if sd is None:
        return [known.model.title, carrier.recipe, f"{row.margin:.2%}", "-", *["-"] * 4]
    needed = [
        seeds_needed(sd, row.margin, part * row.margin, row.alpha / len(row.seeds)) for part in (0.0, 0.25, 0.5, 0.75)
    ]
    return [
        known.model.title,
        carrier.recipe,
        f"{row.margin:.2%}",
        f"{sd:.4%}",
        *(str(n or "above 400") for n in needed),
    ]


@dataclass(frozen=True)
class Alarms:
    """Simulated gates of one model: red gates by the way of drawing, and their causes."""

    model: str
    cells: int
    seeds: str
    red: dict[str, simulated.Gates]

    @property
    def row(self) -> list[str]:
        counts = [_gates(self.red.get(how), self.cells) for how in WAYS]
        causes: dict[str, int] = {}
        for g in self.red.values():
            for name, n in g.causes.items():
                causes[name] = causes.get(name, 0) + n
        named = [f"{name} ({n})" for name, n in sorted(causes.items(), key=lambda item: -item[1])]
        return [self.model, str(self.cells), self.seeds, *counts, ", ".join(named) or "-"]


def alarms(known: simulated.Noise, stored: Goldens, gates: int) -> Alarms:
    """Simulate ``gates`` gates of sound runs in each way that the records allow."""
    found = {how: simulated.gates(known, stored, gates, how) for how in (simulated.WHOLE, simulated.MIXED)}
    other = simulated.held_out(known.model)
    if other:
        found[HELD_OUT] = simulated.gates(other, stored, gates, simulated.WHOLE)
    return Alarms(known.model.title, found[simulated.WHOLE].cells, known.seeds, found)


def _gates(found: simulated.Gates | None, cells: int) -> str:
    """Red gates of all, with the number of cells if it is not ``cells``."""
    if found is None:
        return "-"
    text = Count(int(found.red.sum()), len(found.red)).text()
    return text if found.cells == cells else f"{text} ({found.cells} cells)"


def all_models(found: Sequence[Alarms]) -> list[str]:
    """A gate of all simulated models: red if one of them is."""
    counts = []
    for how in (simulated.WHOLE, simulated.MIXED):
        red = np.logical_or.reduce([a.red[how].red for a in found])
        counts.append(Count(int(red.sum()), len(red)).text())
    return ["all of these", str(sum(a.cells for a in found)), "", *counts, "-", "-"]


def calibrations(sets: Sequence[Sequence[AnyRecord]], rules: Policy) -> list[Calibration]:
    """The calibration of each set that holds planted faults of one schedule."""
    found = []
    for records in sets:
        runs = [r for r in records if isinstance(r, Trajectory)]
        if any(r.variant for r in runs) and len({r.spec_hash for r in runs}) == 1:
            canaries = [r for r in records if isinstance(r, Measurements) and r.check == CANARY]
            found.append(calibrate(runs, canary_ratios(canaries, rules)))
    return found


def weakest(c: Calibration, rows: int = 4) -> list[list[str]]:
    """The faults of a calibration that stand out least: model, fault, ratios of tail, window, BF16 and canary, and what sees them."""
    faults = [x for x in c.lines if x.seen_by or any(x.name in problem for problem in c.problems)]

    def largest(line: Line) -> float:
        return max(line.tail_ratio, line.window_ratio, line.control_ratio, line.canary_ratio or 0.0)

    return [
        [c.model, x.name, f"{x.tail_ratio:.1f}", f"{x.window_ratio:.1f}", f"{x.control_ratio:.1f}",
         "not recorded" if x.canary_ratio is None else f"{x.canary_ratio:.1f}", x.seen_by or "**nothing**"]
        for x in sorted(faults, key=largest)[:rows]
    ]  # fmt: skip


def _behind(m: trials.Model) -> list[str]:
    """The records behind a model: its golden, devices, distinct runs of recipes, and planted faults."""
    golden = f"{'stored' if m.stored else 'made from these records'}, {len(m.golden.seeds)} seeds"
    devices = ", ".join(dict.fromkeys(s.environment.device for s in m.sessions))
    return [m.title, golden, devices, str(len(m.pairs)), str(len({r.cell for r, _ in m.pairs})), str(len(m.faults))]


def page(
    paths: Sequence[Path], sets: Sequence[Sequence[AnyRecord]], stored: Goldens, rules: Policy, gates: int, draws: int
) -> str:
    """The whole page as Markdown."""
    found = trials.models(sets, stored, rules)
    results = [j for model in found for j in judged(model, stored)]
    known = [(m, simulated.noise(m)) for m in found]
    noises = [n for _, n in known if n]
    simulations = [alarms(n, stored, gates) for n in noises]
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        (Path(__file__).parent / "evidence.md.j2").read_text(encoding="utf-8")
    )
    sound = count(results, OURS, SOUND, REPLICAS, DEVICES)
    text = template.render(
        command=f"python benchmarks/evidence.py {' '.join(map(str, paths))} --write docs/evidence.md",
        models=[_behind(m) for m in found],
        kinds=KINDS,
        total=head_to_head(results),
        by_model=[(m.title, head_to_head([j for j in results if j.model == m.title])) for m in found],
        missed=[j for j in results if j.trial.should_be_red and not j.red[OURS]],
        alarmed=[j for j in results if not j.trial.should_be_red and j.red[OURS]],
        undecided=sum(j.trial.should_be_red and j.verdict.status == "inconclusive" for j in results),
        nan=nan_run(found[0], stored),
        gradients=gradient_errors(sets),
        severities=[s for n in noises for s in severities(n, stored, draws)],
        power=[power(n) for n in noises],
        alarms=[a.row for a in simulations] + ([all_models(simulations)] if len(simulations) > 1 else []),
        silent=[m.title for m, n in known if n is None],
        clean=sound,
        target=TARGET,
        gates=gates,
        weakest=[row for c in calibrations(sets, rules) for row in weakest(c)],
        unseen=[f"{problem} ({c.model})" for c in calibrations(sets, rules) for problem in c.problems],
        shown=shown(results),
        ways=WAYS,
        pairs=pairs.whole(pairs.sound(pairs.recorded(r for records in sets for r in records))),
    )
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+", metavar="SET")
    parser.add_argument("--golden-dir", type=Path, default=Path("golden"))
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page (default: print it)")
    parser.add_argument("--table", action="store_true", help="print the short table alone, without simulations")
    parser.add_argument("--gates", type=int, default=10_000, help="simulated gates of a model (default: 10000)")
    parser.add_argument("--draws", type=int, default=400, help="simulated sessions of a severity (default: 400)")
    args = parser.parse_args()
    stored = references.load(args.golden_dir)
    rules = policy.load(args.golden_dir, datetime.date.today()).model_copy(update={"known": None})
    sets = [load_records(path) for path in args.records]
    if args.table:
        print(
            "\n".join(short_table([j for model in trials.models(sets, stored, rules) for j in judged(model, stored)]))
        )
        return
    made = page(args.records, sets, stored, rules, args.gates, args.draws)
    if args.write:
        atomic.write(args.write, made)
    else:
        print(made)


if __name__ == "__main__":
    main()
