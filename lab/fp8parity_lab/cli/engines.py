"""``fp8parity engines``: compare log-probabilities of a trainer and an engine."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from fp8parity.cli.common import (
    DEVICE,
    GLOBS,
    NUMBER,
    Command,
    Options,
    finish,
    one_of,
    progress,
    records_in,
    reports,
    write_files,
)
from fp8parity.did_you_mean import refuse_unknown
from fp8parity.records.cell import Execution
from fp8parity.report import terminal
from fp8parity.report.blocks import Block
from fp8parity.report.render import check_ending
from fp8parity.report.terminal import Screen
from fp8parity.workload.presets import presets

from fp8parity_lab.engines import page

WIDTH = 80
DEFAULT = "micro"


def _show(args: argparse.Namespace, blocks: list[Block], renderers: Any, content: Any) -> list[str]:
    """Write the reports of a command, print its blocks, and return what could not be written."""
    unwritten = write_files(reports(renderers, *((content, path) for path in args.report)))
    print(terminal.text(Screen(WIDTH), *blocks), flush=True)
    return unwritten


def _matrix(args: argparse.Namespace) -> int:
    import torch
    from fp8parity.recipes.registry import preload
    from fp8parity.training import provenance
    from fp8parity.training.hardware import detect, pinned_threads

    from fp8parity_lab.engines import measured
    from fp8parity_lab.engines.checkpoint import Plan
    from fp8parity_lab.engines.models import MULTIPLE

    for path in args.report:
        check_ending(page.RENDERERS, path, "--report")
    refuse_unknown("model", [args.model], presets())
    if args.sequences % MULTIPLE or not 1 < args.prompt < args.length:
        raise ValueError(f"give --sequences in multiples of {MULTIPLE}, and a --prompt shorter than --length")
    hardware = detect("cpu" if args.device == "cpu" else None)
    preload(hardware.capability)
    device, start = torch.device(hardware.device), time.monotonic()
    args.records.mkdir(parents=True, exist_ok=True)
    plan = Plan(args.steps, args.sequences, args.prompt, args.length, args.seed)
    recipes = measured.chosen(args.recipe, args.execution, hardware.capability)
    preset, begin = presets()[args.model], progress(len(recipes.runs))
    # Of a small model's operations one thread is faster than two, and its bits do not depend on the machine's cores.
    with pinned_threads(torch.get_num_threads() if args.hf else preset.schedule.threads):
        subject = measured.subject_of(args.hf, preset, plan, device, args.records)
        found = measured.measure(subject, plan, recipes, device, args.records, begin)
    what = f"{plan.sequences} sequences of {plan.length} tokens, {plan.prompt} of them given"
    facts = {
        "model": f"{subject.name}, {'as it is' if args.hf else f'after {plan.steps} steps in BF16'}, seed {plan.seed}",
        "tokens": what,
        "executions": ", ".join(f"{name} {execution}" for name, (_, execution) in recipes.runs.items()),
        "device": provenance.device_name(device),
        "torch": torch.__version__,
        "seconds": f"{time.monotonic() - start:.0f}",
    }
    made = page.Matrix(found.pairs(), found.variants(), facts, recipes.not_run)
    return finish(_show(args, page.printed(made), page.RENDERERS, made))


MEASURED: Options = {
    "--model": (f"a model of this project (default: {DEFAULT})", {"default": DEFAULT}),
    "--seed": ("of the training, and of the sequences (default: 0)", {"type": int, "default": 0, "metavar": "N"}),
    "--steps": ("steps of BF16 before (default: 200)", {**NUMBER, "default": 200}),
    "--sequences": ("default: 64", {**NUMBER, "default": 64}),
    "--prompt": ("tokens that are given (default: 32)", {**NUMBER, "default": 32}),
    "--length": ("tokens of a sequence (default: 128)", {**NUMBER, "default": 128}),
    **DEVICE,
    **records_in(".parity/engines", "folder of weights and scores, reused by later runs (default: {})"),
}
MATRIX: Options = {
    "--recipe": ("recipe or pattern (repeatable; default: all)", GLOBS),
    "--execution": (
        "native or emulated (default: the first that runs here)",
        {"type": one_of((Execution.NATIVE, Execution.EMULATED)), "metavar": "EXECUTION"},
    ),
    "--hf": ("a folder with a causal language model of Hugging Face instead", {"type": Path, "metavar": "FOLDER"}),
    **MEASURED,
}
COMMAND = Command(
    "compare the log-probabilities of a trainer with those of an engine",
    actions={
        "matrix": Command("compare every recipe as trainer with each as engine", _matrix, MATRIX, page.RENDERERS),
    },
    example="fp8parity engines matrix --model micro",
)
