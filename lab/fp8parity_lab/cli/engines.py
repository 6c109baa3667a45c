"""``fp8parity engines``: compare log-probabilities of a trainer and an engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fp8parity.cli import common
from fp8parity.cli.common import Command, Exit, Options
from fp8parity.did_you_mean import refuse_unknown
from fp8parity.numerics.spec import GEMMS
from fp8parity.records.cell import Execution
from fp8parity.report import terminal
from fp8parity.report.blocks import Block, Paragraph
from fp8parity.report.render import check_ending
from fp8parity.report.terminal import Screen
from fp8parity.workload.presets import presets

from fp8parity_lab.engines import page
from fp8parity_lab.engines.logs import FORMS

if TYPE_CHECKING:
    from fp8parity.training.hardware import Hardware

    from fp8parity_lab.engines.measured import Chosen

WIDTH, SEQUENCES = 80, 32


def _show(args: argparse.Namespace, made: page.EnginePage, blocks: Sequence[Block], code: int = Exit.OK) -> int:
    """Write the reports, print the sentence and blocks, and return the exit status."""
    unwritten = common.write_files(common.reports(page.RENDERERS, *((made, path) for path in args.report)))
    text = terminal.text(Screen(WIDTH), *blocks, Paragraph(""), made.headline, *map(Paragraph, made.notes))
    print(text, flush=True)
    return common.finish(unwritten, code)


def _begin(args: argparse.Namespace) -> tuple[Hardware, Chosen]:
    from fp8parity.recipes.registry import preload
    from fp8parity.training.hardware import detect

    from fp8parity_lab.engines import measured

    for path in args.report:
        check_ending(page.RENDERERS, path, "--report")
    hardware = detect("cpu" if args.device == "cpu" else None)
    preload(hardware.capability)
    return hardware, measured.chosen(args.recipe, args.execution, hardware.capability)


def _facts(hardware: Hardware, recipes: Chosen, start: float, more: Mapping[str, str]) -> dict[str, str]:
    import torch
    from fp8parity.training import provenance

    ran = ", ".join(f"{name} {execution}" for name, (_, execution) in recipes.runs.items())
    where = {"device": provenance.device_name(torch.device(hardware.device)), "torch": torch.__version__}
    return {**more, "executions": ran, **where, "seconds": f"{time.monotonic() - start:.0f}"}


def _matrix(args: argparse.Namespace) -> int:
    import torch
    from fp8parity.training.hardware import pinned_threads

    from fp8parity_lab.engines import measured, models, scores

    refuse_unknown("model", [args.model], presets())
    if args.sequences % SEQUENCES or not 1 < args.prompt < args.length:
        raise ValueError(f"give --sequences in multiples of {SEQUENCES}, and a --prompt shorter than --length")
    start, (hardware, recipes) = time.monotonic(), _begin(args)
    args.records.mkdir(parents=True, exist_ok=True)
    sizes = (args.steps, args.sequences, args.prompt, args.length, args.seed)
    plan = measured.Plan(*sizes, torch.device(hardware.device), args.records)
    # Of a small model's operations one thread is faster than two, and its bits do not depend on the machine's cores.
    with pinned_threads(torch.get_num_threads() if args.hf else presets()[args.model].schedule.threads):
        own = None if args.hf else measured.states(presets()[args.model], plan)[measured.LAST]
        subject = own or models.FolderSubject(args.hf, plan.device)
        found = measured.measure(subject, plan, recipes, common.progress(len(recipes.runs)))

    def numbers(trainer: str, engine: str, way: str) -> scores.Numbers:
        return scores.Pair(found[trainer][measured.TRAINER], found[engine][way]).numbers()

    pairs = {(a, b): numbers(a, b, models.ENGINE) for a in found for b in found}
    variants = {(a, way): numbers(a, a, way) for a in found for way in models.VARIANTS}
    model = f"{args.hf}" if args.hf else f"{args.model} after {args.steps} steps in BF16"
    tokens = f"{args.sequences} sequences of {args.length} tokens, {args.prompt} of them given; seed {args.seed}"
    facts = _facts(hardware, recipes, start, {"model": model, "scored": tokens})
    made = page.matrix(pairs, variants, facts, recipes.not_run)
    return _show(args, made, [*page.printed(pairs), Paragraph(f"\n{page.ABOUT}")])


def _invariance(args: argparse.Namespace) -> int:
    import torch

    from fp8parity_lab.engines import invariance

    start, (hardware, recipes) = time.monotonic(), _begin(args)
    begin, rows = common.progress(len(recipes.runs)), dict[tuple[str, str], tuple[Mapping[str, float], str]]()
    for recipe, execution in recipes.runs.values():
        begin(f"{recipe.name} {execution}")
        found = invariance.measure(recipe, execution, torch.device(hardware.device))
        for gemm in GEMMS:
            by_batch = {batch: found[gemm, batch] for batch in invariance.BATCHES}
            rows[recipe.name, gemm] = by_batch, invariance.theory(recipe, gemm)
    made = page.invariance(rows, _facts(hardware, recipes, start, {}), page.left_out(recipes.not_run))
    return _show(args, made, made.sections[0].blocks)


def _judge(args: argparse.Namespace) -> int:
    from fp8parity_lab.engines import logs, scores

    for path in args.report:
        check_ending(page.RENDERERS, path, "--report")
    if not args.allowed > 0:
        raise ValueError(f"--allowed {args.allowed}: must be above 0")
    forms = (args.trainer_form, args.engine_form)
    trainer, engine, *others = [
        logs.read(path, form)
        for files in ((args.trainer, args.engine), args.baseline or ())
        for path, form in zip(files, forms, strict=False)
    ]
    pair = scores.Pair(trainer, engine)
    own, rows = pair.numbers(), list[scores.Compared]()
    if others:
        # The same sequences are resampled together, others independently.
        same = [x.tolist() for x in trainer.tokens] == [x.tolist() for x in others[0].tokens]
        rows = scores.above(own, scores.Pair(*others).numbers(seed=0 if same else 1), args.allowed)
    steps = trainer.steps or engine.steps
    trend = scores.trend(pair, steps) if steps else None
    facts = {
        "sequences": f"{len(pair.sizes)}",
        "tokens": f"{len(pair.delta)}",
        "allowed": f"{args.allowed:g} x baseline",
    }
    made = page.judged(own, rows, trend, facts)
    return _show(args, made, made.sections[0].blocks, Exit.RED if made.data["red"] else Exit.OK)


RECIPES: Options = {
    "--recipe": ("recipe or pattern (repeatable; default: all)", common.GLOBS),
    "--execution": (
        "native or emulated (default: the first that runs here)",
        {"type": common.one_of((Execution.NATIVE, Execution.EMULATED)), "metavar": "EXECUTION"},
    ),
    **common.DEVICE,
}
MATRIX: Options = {
    "--model": ("a model of this project (default: micro)", {"default": "micro"}),
    "--hf": ("a folder with a causal model of Hugging Face instead", {"type": Path, "metavar": "FOLDER"}),
    "--seed": ("of training and sequences (default: 0)", {"type": int, "default": 0, "metavar": "N"}),
    "--steps": ("steps of BF16 before (default: 200)", {**common.NUMBER, "default": 200}),
    "--sequences": ("default: 64", {**common.NUMBER, "default": 64}),
    "--prompt": ("tokens that are given (default: 32)", {**common.NUMBER, "default": 32}),
    "--length": ("tokens of a sequence (default: 128)", {**common.NUMBER, "default": 128}),
    **common.records_in(".parity/engines", "folder of weights and scores, reused by later runs (default: {})"),
    **RECIPES,
}
FORM: common.Keywords = {"choices": tuple(FORMS), "default": "plain"}
JUDGE: Options = {
    "trainer": ("JSON lines: token ids and log-probabilities of a sequence", {"type": Path}),
    "engine": ("the same sequences, by the engine", {"type": Path}),
    "--baseline": ("two logs of a sound pair", {"type": Path, "nargs": 2, "metavar": ("TRAINER", "ENGINE")}),
    "--allowed": ("how many times the baseline a number may be (default: 1)", {"type": float, "default": 1.0}),
    "--trainer-form": ("who wrote the trainers' logs (default: plain)", FORM),
    "--engine-form": ("who wrote the engines' logs (default: plain)", FORM),
}
ACTIONS = {
    "matrix": Command("compare each recipe as trainer with each as engine", _matrix, MATRIX),
    "invariance": Command("measure whether a row's result depends on the rows next to it", _invariance, RECIPES),
    "judge": Command("judge two logs of log-probabilities by a baseline, and their trend", _judge, JUDGE),
}
COMMAND = Command(
    "compare the log-probabilities of a trainer with those of an engine",
    actions={name: action._replace(reports=page.RENDERERS) for name, action in ACTIONS.items()},
    example="fp8parity engines matrix --model micro",
)
