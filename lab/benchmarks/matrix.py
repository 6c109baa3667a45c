"""Plant each fault, run each check on it, and write which check sees what, by which numbers, at which price.

    nice python lab/benchmarks/matrix.py measure                # about 25 minutes of one core; it resumes
    python lab/benchmarks/matrix.py page --write lab/docs/evidence/matrix.md

``measure`` adds rows to lab/docs/evidence/matrix.csv, one for each fault and check. A fault is planted on the smallest
model that has its place; numbers are judged by the policy around those of a sound run of the same process. Emulation,
one thread, uncompiled, and short runs (``sessions.shorten``): seconds compare checks with each other.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "fixtures")]

import pytest  # noqa: E402 - the path of the tests comes first
import torch  # noqa: E402
from faults import looks, runs  # noqa: E402
from faults.catalogue import CATALOGUE  # noqa: E402
from faults.fault import Fault, Kind  # noqa: E402
from fp8parity import recipes  # noqa: E402
from fp8parity.checks import canary, gradients  # noqa: E402
from fp8parity.judging import numerics  # noqa: E402
from fp8parity.judging.references.numbers import MeasuredNumbers  # noqa: E402
from fp8parity.judging.references.tables import csv_text  # noqa: E402
from fp8parity.judging.verdict import Verdict  # noqa: E402
from fp8parity.numerics import emulation  # noqa: E402
from fp8parity.recipes import ConvertedModel, conversion  # noqa: E402
from fp8parity.records import files, sets  # noqa: E402
from fp8parity.records.cell import Cell  # noqa: E402
from fp8parity.records.check_names import info_of  # noqa: E402
from fp8parity.records.schema import Measurements  # noqa: E402
from fp8parity.runner import numerics_check  # noqa: E402
from fp8parity.training import loop  # noqa: E402
from fp8parity.training.variants import Variant  # noqa: E402
from fp8parity.workload import corpus  # noqa: E402
from fp8parity.workload.presets import presets  # noqa: E402
from sessions import Session, cell, on_cpu, shorten, stored  # noqa: E402
from trajectories import PROVENANCE  # noqa: E402

TABLE = ROOT / "lab" / "docs" / "evidence" / "matrix.csv"
FIRST_STEP = "first step"
"""The part of the check of losses that one step decides: the gradient norms of a recipe next to BF16's."""
CHEAP = ("codes", "gemm", "accumulation", FIRST_STEP, "layers", "gradients", "places", "canary", "experts")
DEAR = ("checkpoint", "state", "twins")
"""They run on faults that one of them is known to see."""
CHECKS = CHEAP + DEAR
GPU_SETS = ("h100-options", "h200-experts")
"""The records of seconds on a GPU: a session of the numerics suite at ``tiny``, and one with experts."""
LIVE = (looks.Numerics, looks.Canary, runs.FirstGradients)
"""Looks whose plant changes code that runs. Those of others change records."""
MODELS = {"places": "micro", "experts": "tiny-moe", "loss parity": "tiny"}
"""The smallest model with the places of a fault, by the check that is known to see it. Otherwise ``nano``."""


HEAD = ("check", "s, CPU", "s, H100", "faults", "sees", "by a number only", "alone", "first")
WHY = {
    "gemm": "cheapest on an H100, and alone with faults of noise, blocks and slices of one GEMM",
    "codes": "as cheap, and alone with codes that no SQNR shows: it compares bits",
    "canary": "alone with faults of the model, the optimizer, the loss and the data, in BF16 and in a recipe",
    "places": "alone with faults of one linear or one microbatch",
    "state": "alone with what an evaluation changes, and first with histories and caches",
    "checkpoint": "alone with what a checkpoint drops or rounds, in 11 s of an H100",
    "defaults": "alone with a recipe that a package changed behind its name; no seconds",
    "dispatch": "a fall-back by the names of kernels (tests/test_kernels.py); 6 s",
    "modes": "30% of the seconds, and it saw a race of Inductor's kernels at `mini` in every gate (findings.md)",
    "layers": "sees nothing alone: it explains a red `gradients`",
    "gradients": "sees nothing alone, and costs 19 s: papers and reports compare the SNR of gradients",
    "accumulation": "sees nothing alone: `gemm` sees a short accumulator, by its rules or its numbers",
    "twins": "alone with options of a step (recompute, cached weights), but 4.5 minutes of an H100",
    "experts": "`places` sees three of its four faults; the fourth has a place in its own model only",
    "attention": "ten cases; its findings are of versions of a package (findings.md)",
    "large": "an offset beyond 2^31 (tests/test_device_checks.py) changes with a version of a package",
    "autotune": "each configuration of each kernel (tests/test_inductor.py) changes with torch or torchao",
}
"""Why a check is one of the daily gate or of a release (``Check.release``), by hand from the tables of the page."""
PAGE = """# Which check sees which fault

`python lab/benchmarks/matrix.py measure` fills [matrix.csv](matrix.csv), and `python lab/benchmarks/matrix.py page \
--write lab/docs/evidence/matrix.md` writes this page.

{faults} [planted faults](faults.md) change code that runs on a CPU. {pairs} pairs of a fault and a check took \
{minutes:.0f} minutes of one core. Faults of records, of speed and of the gate have no other check than that of \
faults.md. `first step` is the part of `loss parity` that one step decides. `checkpoint`, `state` and `twins` ran \
only on faults that one of them is known to see, because they cost most.

## Checks

Seconds on a CPU: the median of short runs of one cell, uncompiled. On an H100: the sum over the cells of `tiny` in \
one session. "By a number only": inside the rules, but not inside the band of a measured number. "Alone": no other \
check that ran sees the fault. "First": this check is the cheapest that sees it.

{checks}
Faults that no check here sees: {unseen}.

## Daily and release

The cheapest set of checks that sees every fault that any check sees: by seconds of a CPU {daily}, of an H100 \
{daily_gpu}. `first step` costs nothing, because the loss gate trains it. No fault needs {unneeded}.

{recommended}
Faults that no CPU can show are planted in tests of their own:

- of `modes` in tests/test_modes.py: a batch, a learning rate or a scale that was captured, quantizers that \
compilation drops
- of `autotune` in tests/test_inductor.py
- of `dispatch` in tests/test_kernels.py
- of `attention` in tests/test_attention.py
- of `large`, and of a leak after an exception (`state`), in tests/test_device_checks.py
- of options of a vendor (`twins`) in tests/test_twins.py and tests/test_te_switches.py
- of `experts` in tests/test_experts.py
- of `--parity-stress` in tests/test_stress.py
- of `defaults` in tests/faults/gemms.py

## Faults that one check sees

{alone}
## Numbers

{held} faults break no rule of any check: only measured numbers show them ({of}). The table has the number of faults \
that change a metric; in parentheses of those that leave it inside its rule.

{numbers}
## The matrix

R: outside a rule. n: outside the band of a measured number only. -: every number is inside. Empty: it did not run, or \
its model has no such place; a change of the parts of a run has one in `canary` and in the loss only.

{marks}"""


@dataclass(frozen=True)
class Row:
    """What one check says about one fault. Metrics with their first place, separated by "; ".

    rules: the metrics that are outside their rules. numbers: those that only a measured number shows.
    """

    fault: str
    kind: str
    cell: str
    known: str
    check: str
    seconds: str = ""
    rules: str = ""
    numbers: str = ""

    @property
    def red(self) -> bool:
        return bool(self.rules or self.numbers)


@cache
def session() -> Session:
    return on_cpu(Path(tempfile.mkdtemp()))


def known(fault: Fault) -> str:
    return "; ".join(dict.fromkeys(f.look.check for f in fault.seen))


def planned() -> Iterator[tuple[Fault, str, Cell]]:
    """Return each fault with the checks that run on it, and the cell."""
    for fault in CATALOGUE:
        if of := subject(fault):
            dear = any(check in known(fault).split("; ") for check in DEAR)
            yield from ((fault, check, of) for check in (CHECKS if dear else CHEAP))


def subject(fault: Fault) -> Cell | None:
    """Return the cell on which a fault is planted, or None if it changes records."""
    found = [f.look for f in fault.seen if isinstance(f.look, LIVE)]
    if fault.kind == Kind.GATE or not found or "defaults" in (checked := [k.check for k in found]):
        return None
    model = next((MODELS[check] for check in checked if check in MODELS), None)
    if model is None:
        own = getattr(found[0], "model", "nano")
        model = "nano" if own == "tiny" else own
    recipe = found[0].recipe
    return cell(recipe, "native" if recipe == "bf16" else "emulated", model)


@cache
def users() -> list[ModuleType]:
    """Return the modules that convert models."""
    for check in CHECKS:
        if check != FIRST_STEP:
            numerics_check(check)
    named = [m for name, m in sys.modules.items() if name.startswith("fp8parity.") and m is not conversion]
    return [m for m in named if getattr(m, "apply", None) is conversion.apply]


def tier(check: str) -> str:
    return "release" if info_of(check).release else "daily"


def spread(patch: pytest.MonkeyPatch) -> None:
    """Let every check convert models as the one does in which a plant replaced the conversion."""
    changed = [m.apply for m in users() if m.apply is not conversion.apply]
    inside: list[bool] = []

    def apply(*args: Any, **options: Any) -> ConvertedModel:
        if inside:
            return conversion.apply(*args, **options)
        inside.append(True)
        try:
            return changed[0](*args, **options)
        finally:
            inside.pop()

    for module in users() if changed else ():
        patch.setattr(module, "apply", apply)


def trained(name: str, recipe: str, variant: Variant | None) -> runs.Trajectory:
    preset = presets()["pico" if name == "nano" else name]
    schedule = replace(preset.schedule, steps=1, tail=1, validation_rows=4)
    of = cell(recipe, "native" if recipe == "bf16" else "emulated")
    return loop.train(
        preset.model, recipes.get(recipe), of.execution, schedule, corpus.load("topics"), 0,
        device=torch.device("cpu"), variant=variant,
    )  # fmt: skip


_control = cache(lambda model: trained(model, "bf16", None))


def first_step(of: Cell, variant: Variant | None = None) -> set[str]:
    """Return what is wrong with the first step of a recipe, by rules alone."""
    run, control = trained(of.model, of.recipe, variant), _control(of.model)
    found = runs.first_step([run], [control], stored()[1], MeasuredNumbers())
    return {"first gradient"} if any(r.outside for r in found) else set()


_sound_step = cache(first_step)


def outside(sound: Measurements, found: Measurements) -> tuple[set[str], set[str]]:
    """Return the numbers that rules show, and those that only the numbers of a sound run show."""

    def failing(verdict: Verdict) -> set[str]:
        named = verdict.failing if verdict.status != "no-golden" else []
        return {f"{r.metric} @ {r.where}" for r in named}

    by_rules = failing(numerics.judge(found, stored()[1], MeasuredNumbers()))
    return by_rules, failing(looks.against(sound, found)) - by_rules


def measured(check: str, of: Cell, variant: Variant | None = None) -> Measurements | None:
    """Return the numbers of a check under the name of the recipe that is measured, or None if it does not apply."""
    spec = session().spec(of)
    if (of.recipe == "bf16" and check == "codes") or numerics_check(check).skip_reason(spec):
        return None
    if variant:
        values, notes = canary.measure(replace(spec, variant=variant))
        record = Measurements(cell=of, check=check, values=values, notes=notes, provenance=PROVENANCE, session="s")
    else:
        record = session().measure(check, of)
    return record.model_copy(update={"cell": of.model_copy(update={"recipe": recipes.get(of.recipe).name})})


@cache
def sound(check: str, of: Cell) -> Measurements | None:
    """Return the numbers of a check without a fault, or None if it does not apply."""
    try:
        return measured(check, of)
    except (ValueError, ImportError):
        return None  # of a package that is not here


def judged(fault: Fault, check: str, of: Cell) -> tuple[set[str], set[str]]:
    """Return what a check says about a planted fault. A check that stops counts as a rule."""
    variant = fault.plant if isinstance(fault.plant, Variant) else None
    before = None if check == FIRST_STEP else sound(check, of)
    try:
        if check == FIRST_STEP:
            return first_step(of, variant), set()
        found = measured(check, of, variant)
    except (AssertionError, ValueError, RuntimeError, KeyError, TypeError) as error:
        return {f"{type(error).__name__} @ {error}"[:60].replace("\n", " ")}, set()
    assert before is not None
    assert found is not None
    own, new = outside(before, before), outside(before, found)
    return new[0] - own[0], new[1] - own[1]


def applies(fault: Fault, check: str, of: Cell) -> bool:
    """Return whether a check can see code in which a fault is planted."""
    if check == FIRST_STEP:
        return of.recipe != "bf16" and of.model != "tiny-moe" and not _sound_step(of)
    return (check == "canary" or not isinstance(fault.plant, Variant)) and sound(check, of) is not None


@contextmanager
def prepared() -> Iterator[pytest.MonkeyPatch]:
    """Shorten runs, and let no kernel be compiled, so that a plant is not hidden in an older one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulation, "compiles", lambda: False)
        patch.setattr(gradients, "TRAINING", replace(gradients.TRAINING, steps=10))
        emulation.kernel.cache_clear()
        shorten(patch)
        looks.add_recipes(patch)
        yield patch
    emulation.kernel.cache_clear()


def row(fault: Fault, check: str, of: Cell) -> Row | None:
    """Plant a fault and run one check. None if it does not apply, or its model has no such place."""
    users()
    with prepared() as patch:
        if not applies(fault, check, of):
            return None
        if not isinstance(fault.plant, Variant):
            fault.plant(patch)
            spread(patch)
        start = time.process_time()
        try:
            rules, numbers = judged(fault, check, of)
        except (AttributeError, IndexError) as error:
            if isinstance(error, AttributeError) and "has no attribute" not in str(error):
                raise
            return None  # no such place, or no second microbatch
        seconds = time.process_time() - start
    return Row(fault.name, str(fault.kind), of.id, known(fault), check, f"{seconds:.2f}", *map(shown, (rules, numbers)))


def shown(names: set[str]) -> str:
    """Return each metric with its first place."""
    first: dict[str, str] = {}
    for name in sorted(names):
        metric, _, where = name.partition(" @ ")
        first.setdefault(metric, where)
    return "; ".join(f"{metric} @ {where}" for metric, where in first.items())


def table() -> list[Row]:
    """Return the rows that were measured."""
    if not TABLE.exists():
        return []
    with TABLE.open(newline="") as file:
        return [Row(**fields) for fields in csv.DictReader(file)]


def fill() -> None:
    """Measure the rows that are missing, and sort all. A check that does not apply has a row without seconds."""
    torch.set_num_threads(1)
    rows = {(r.fault, r.check): r for r in table()}
    with TABLE.open("a", newline="") as file:
        write = csv.writer(file, lineterminator="\n")
        if not rows:
            write.writerow(f.name for f in fields(Row))
        for fault, check, of in planned():
            if (fault.name, check) not in rows:
                found = row(fault, check, of) or Row(fault.name, str(fault.kind), of.id, known(fault), check)
                rows[fault.name, check] = found
                write.writerow(astuple(found))
                file.flush()  # a run that is killed goes on from here
    kept = [astuple(rows[fault.name, check]) for fault, check, _ in planned()]
    files.write(TABLE, csv_text([f.name for f in fields(Row)], kept))


def cover(red: Mapping[str, set[str]], seconds: Mapping[str, float]) -> tuple[str, ...]:
    """Return the checks that see every fault of ``red`` in the fewest seconds."""
    names = sorted(seconds)
    subsets = (tuple(n for i, n in enumerate(names) if mask >> i & 1) for mask in range(1 << len(names)))
    whole = (of for of in subsets if all(seen & set(of) for seen in red.values()))
    return min(whole, key=lambda of: (sum(seconds[n] for n in of), len(of)))


def on_a_gpu() -> dict[str, float]:
    """Return the seconds of each check over the cells of a recorded session. The first set with a check counts."""
    found: dict[str, float] = {}
    for name in GPU_SETS:
        own: dict[str, float] = defaultdict(float)
        for record in sets.load([ROOT / "golden" / "records" / f"{name}.zip"]):
            if isinstance(record, Measurements):
                own[record.check] += record.seconds or 0.0
        found = own | found
    return found


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    return "".join("| " + " | ".join(map(str, r)) + " |\n" for r in (head, ["---"] * len(head), *rows))


def named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def page() -> str:
    """Return the page in Markdown."""
    rows = [r for r in table() if r.seconds]
    everything = {r.fault: {x.check for x in rows if x.fault == r.fault and x.red} for r in rows}
    red = {fault: seen for fault, seen in everything.items() if seen}
    seconds = {c: statistics.median(float(r.seconds) for r in rows if r.check == c) for c in CHECKS}
    gpu = {FIRST_STEP: 0.0} | on_a_gpu()
    daily = [cover(red, {c: price[c] for c in CHECKS}) for price in (seconds | {FIRST_STEP: 0.0}, gpu)]
    alone = {c: [fault for fault, seen in red.items() if seen == {c}] for c in CHECKS}
    ruled = {r.fault for r in rows if r.rules}
    held = Counter(r.check for r in rows if r.numbers and r.fault not in ruled)
    first = Counter(min(sorted(seen), key=seconds.__getitem__) for seen in red.values())
    return PAGE.format(
        faults=len(everything),
        pairs=len(rows),
        minutes=sum(float(r.seconds) for r in rows) / 60,
        checks=markdown(HEAD, (_of_check(c, rows, seconds[c], gpu[c], len(alone[c]), first[c]) for c in CHECKS)),
        unseen="; ".join(sorted(everything.keys() - red.keys())) or "none",
        daily=named(daily[0]),
        daily_gpu=named(daily[1]),
        unneeded=named(sorted({*CHECKS} - {FIRST_STEP, *daily[0], *daily[1]})),
        recommended=markdown(("check", "run", "because"), ((f"`{c}`", tier(c), why) for c, why in WHY.items())),
        alone=markdown(("check", "faults"), ((f"`{c}`", "; ".join(of)) for c, of in alone.items() if of)),
        held=len(everything.keys() - ruled),
        of=", ".join(f"`{c}` {n}" for c, n in held.most_common()),
        numbers=markdown(
            ("check", "metrics that faults change", "measured metrics that none changes"),
            ((f"`{c}`", *_changed(c, rows)) for c in CHECKS if c != FIRST_STEP),
        ),
        marks=markdown(
            ("fault", "cell", *CHECKS),
            (
                (fault, next(r.cell for r in rows if r.fault == fault), *(_mark(fault, c, rows) for c in CHECKS))
                for fault in everything
            ),
        ),
    )


def _of_check(
    check: str, rows: Sequence[Row], seconds: float, gpu: float, alone: int, first: int
) -> tuple[object, ...]:
    mine = [r for r in rows if r.check == check]
    seen, by_numbers = sum(r.red for r in mine), sum(bool(r.numbers) and not r.rules for r in mine)
    shown = "-" if check == FIRST_STEP else f"{gpu:.0f}"
    return (f"`{check}`", f"{seconds:.2f}", shown, len(mine), seen, by_numbers, alone, first)


def _mark(fault: str, check: str, rows: Sequence[Row]) -> str:
    """Return what the matrix shows: R, n, -, or nothing."""
    found = next((r for r in rows if (r.fault, r.check) == (fault, check)), None)
    return "" if found is None else "R" if found.rules else "n" if found.numbers else "-"


def _changed(check: str, rows: Sequence[Row]) -> tuple[str, str]:
    """Return the metrics that faults change, and the measured ones that none does."""
    mine = [r for r in rows if r.check == check]
    by_rules, by_numbers = (
        Counter(n.partition(" @ ")[0] for r in mine for n in getattr(r, of).split("; ") if n)
        for of in ("rules", "numbers")
    )
    either = by_rules + by_numbers
    measured = {k.metric for k in stored()[0].numbers.tables["shared"] if k.check == check}
    found = (f"{m} {either[m]} ({by_numbers[m]})" for m in sorted(either))
    return "; ".join(found), "; ".join(sorted(measured - set(either))) or "-"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "page"])
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there (default: print it)")
    args = parser.parse_args()
    if args.what == "measure":
        fill()
    elif args.write:
        files.write(args.write, page())
    else:
        print(page())
