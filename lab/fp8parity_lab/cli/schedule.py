"""``fp8parity schedule``: measure the noise and the visible faults of schedules."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fp8parity.cli.common import (
    DEVICE,
    GLOBS,
    NUMBER,
    REPEATED,
    SET,
    Command,
    Exit,
    Options,
    alone,
    progress,
    records_in,
    rules_in,
    start,
    whole,
)
from fp8parity.judging.policy import Policy
from fp8parity.records.cell import CONTROL_RECIPE, DEFAULT_MODEL, TRAINED_MODEL, Cell, Execution
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import load_records
from fp8parity.registry import Registry
from fp8parity.report.escape import say
from fp8parity.workload.presets import Preset, presets

from fp8parity_lab.schedules import CANARY, VISIBLE, ScheduleCalibration, calibrate_records, choice

if TYPE_CHECKING:
    from fp8parity.training.variants import Variant


def changed(preset: Preset, text: str) -> Preset:
    """Change a preset by "steps=320,lr=1e-3". Raises ``ValueError`` if it cannot."""
    parts: dict[str, Any] = {"model": preset.model, "schedule": preset.schedule}
    names = {f.name: part for part, value in parts.items() for f in fields(value) if f.name != "name"}
    owner = Registry("key", names)
    for key, _, value in (change.partition("=") for change in text.split(",") if change):
        part = owner.find(key)
        kind = type(getattr(parts[part], key))
        try:
            given = {"True": True, "False": False}[value] if kind is bool else kind(value)
            parts[part] = replace(parts[part], **{key: given})
        except (ValueError, KeyError):
            raise ValueError(f"{key} needs a value of type {kind.__name__}, got {value!r}") from None
    made = replace(preset, **parts)
    if made.schedule.tail > made.schedule.steps:
        raise ValueError(f"tail is {made.schedule.tail}, and the schedule has {made.schedule.steps} steps; change both")
    return made


def _run(args: argparse.Namespace) -> int:
    """Calibrate each candidate and print the choice. Return 1 if none was accepted."""
    rules = rules_in(args.golden_dir)
    if args.given:
        return _recorded(args, rules)
    preset, found = Registry("model", presets()).find(args.model), []
    for text in args.change or [""]:
        runs = list(_trained(args, changed(preset, text), text))
        try:
            found.append(calibrate_records(runs, rules))
            say(table(found[-1]))
        except ValueError as error:  # the other candidates may still be calibrated
            say(f"{args.model} {text}\n  refused: {error}")
    chosen = choice(found)
    accepted = f"{_title(chosen)}: accepted, with the largest signal to noise" if chosen else ""
    say(f"choice: {accepted or 'none; no candidate was accepted'}")
    return Exit.OK if chosen else Exit.RED


def _recorded(args: argparse.Namespace, rules: Policy) -> int:
    alone(args, TRAINING, "calibrates what is on record, and trains nothing")
    try:
        found = calibrate_records(load_records(args.given), rules)
    except ValueError as error:
        raise ValueError(f"{args.given}: {error}") from error
    say(table(found))
    return Exit.OK if found.accepted else Exit.RED


def _trained(args: argparse.Namespace, preset: Preset, text: str) -> Iterator[AnyRecord]:
    """Train a candidate with replicas, faults and recipes, and measure the canary."""
    from fp8parity.recipes.registry import RECIPES, matching
    from fp8parity.training.variants import FAULTS, replica

    of = args.corpus or preset.corpus
    control = Cell(model=args.model, recipe=CONTROL_RECIPE, execution=Execution.NATIVE, corpus=of)
    faults = Registry("fault", {f.name: f for f in FAULTS})
    asked = [faults.find(name) for name in args.fault or faults]
    if args.recipe:
        matching(args.recipe, RECIPES)  # refuses an unknown name before a folder is made
    folder = args.records / f"{args.model}-{text or 'preset'}"
    runner = start(folder, args.device, models={args.model: preset}, resume=True)
    cells = _cells(control, args.recipe, runner.hardware.capability, preset)
    # The canary's arithmetic does not depend on the size, so a small model replaces one that is too large.
    small = runner.skip_reason(CANARY, control) is not None
    canary = control.model_copy(update={"model": DEFAULT_MODEL}) if small else control
    variants = [None, *(replica(k + 1) for k in range(args.replicas)), *asked]
    begin = progress(1 + len(asked) + args.seeds * (len(variants) + len(cells)))
    for variant in [None, *asked]:
        begin(f"reference values of {canary.model}{_named(variant)}")
        yield runner.measure(CANARY, canary, variant)
    for seed in range(args.seeds):
        for variant in variants:
            begin(f"seed {seed} of {control.id}{_named(variant)}")
            yield runner.trajectory(control, seed, variant)
        for cell in cells:
            begin(f"seed {seed} of {cell.id}")
            yield runner.trajectory(cell, seed)


def _named(variant: Variant | None) -> str:
    return f", {variant.name}" if variant else ""


def _cells(control: Cell, globs: list[str], capability: tuple[int, int] | None, preset: Preset) -> list[Cell]:
    from fp8parity.recipes.conversion import nothing_left
    from fp8parity.recipes.registry import RECIPES, matching

    from fp8parity_lab.executions import first_runnable

    asked, cells = matching(globs, RECIPES) if globs else matching(["*"]), []
    for recipe in RECIPES.values():
        run = first_runnable(recipe, capability)
        if recipe not in asked or recipe.name == CONTROL_RECIPE or not run:
            continue
        if why := nothing_left(recipe, preset.model):
            say(f"{recipe.name} is left out: {why}")
        else:
            cells.append(control.model_copy(update={"recipe": recipe.name, "execution": run}))
    return cells


def _title(c: ScheduleCalibration) -> str:
    s = c.schedule
    tokens = int(s["rows"]) * int(s["length"])
    return f"{c.model} on {c.corpus}, {int(s['steps'])} steps of {tokens} tokens, learning rate {s['lr']:g}"


def table(c: ScheduleCalibration) -> str:
    """Return the table of one calibration, for a terminal of 110 columns."""
    way = "" if c.learned is None else f", {c.learned:.0%} of the way from the unigram to the bigram entropy"
    lines = [
        _title(c),
        f"  tail loss {c.tail_loss:.4f}{way}, {c.seconds:.1f} s a BF16 run",
        f"  noise of a seed's tail gap: {c.noise:.4%} (recipes), {c.replica_noise:.4%} (replicas)",
        f"  {'run':<28} {'n':>2} {'tail gap (sd), %':>20} {'in sd':>8} {'widest window, %':>17} {'in sd':>8} "
        f"{'BF16':>8} {'canary':>8}  by",
    ]
    for line in c.lines:
        canary = "-" if line.canary_ratio is None else f"{line.canary_ratio:.1f}"
        gap = f"{100 * line.mean:+.4f} ({100 * line.sd:.4f})"
        ratios = f"{line.tail_ratio:8.1f} {100 * line.window:17.3f} {line.window_ratio:8.1f} {line.control_ratio:8.1f}"
        lines.append(f"  {line.name:<28} {line.n:>2} {gap:>20} {ratios} {canary:>8}  {line.seen_by or '-'}")
    lines += [f"  refused: {p}" for p in c.problems] or [
        f"  accepted: each of {c.faults} planted faults shows at {VISIBLE:.0f} sd or more, "
        f"or at {VISIBLE:.0f} bands of the canary"
    ]
    return "\n".join(lines)


SEEDS = partial(whole, least=2)
TRAINING: Options = {
    "--model": (f"a model of this project (default: {TRAINED_MODEL})", {"default": TRAINED_MODEL}),
    "--corpus": ("default: the corpus of the model", {}),
    "--change": (
        "a candidate: changes of the model's schedule or dimensions, such as steps=320,lr=1e-3 "
        "(repeatable; default: none)",
        {**REPEATED, "metavar": "KEY=VALUE,..."},
    ),
    "--recipe": ("recipes whose spread is the noise (default: every recipe that runs here)", GLOBS),
    "--fault": ("the planted faults (default: all)", REPEATED),
    "--seeds": ("the number of seeds (default: 3; 2 are the least)", {**NUMBER, "type": SEEDS, "default": 3}),
    "--replicas": ("the number of replicas of a seed (default: 2)", {**NUMBER, "default": 2}),
    **DEVICE,
    **records_in(".parity/schedules", "folder of the records, reused by later runs"),
}
FROM: Options = {"--from": ("train nothing; calibrate these records (a folder or a .zip file)", SET)}
COMMAND = Command(
    "measure the noise and the signal of training schedules",
    _run,
    {**TRAINING, **FROM},
    golden_dir=True,
    example="fp8parity schedule --model micro --change steps=200",
)
