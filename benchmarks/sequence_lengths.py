"""Times the training step of a model at several sequence lengths, with the tokens of a step kept. Needs a GPU.

Attention grows with the length, and FP8 does not speed it up. ``fp8parity predict MODEL --test --records SET`` shows each length beside its
prediction.
"""

from __future__ import annotations

import argparse
import traceback
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from fp8parity import recipes
from fp8parity.judging import speed
from fp8parity.judging.speed_entries import LEAST_PAIRS
from fp8parity.recipes.registry import preload
from fp8parity.records.cell import Execution, Mode
from fp8parity.records.schema import Throughput
from fp8parity.records.storage import name_of, write_json
from fp8parity.timing import steps
from fp8parity.training import hardware
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import TIMED

LENGTHS = (512, 2048, 8192, 32_768)


@dataclass(frozen=True)
class Asked:
    """What is timed: a ``model`` with a recipe, ``tokens`` a step (more if one sequence is longer), and how its step runs."""

    model: str
    recipe: str
    execution: Execution
    tokens: int
    mode: Mode
    pairs: int


def timed(asked: Asked, length: int, device: torch.device) -> Throughput:
    """Time one length. Its ``variant`` is "rowsxlength", unless rows and length are those of the suite."""
    known = TIMED[asked.model]
    rows = max(1, asked.tokens // length)
    step = steps.training_step(
        presets()[asked.model].model,
        recipes.get(asked.recipe),
        asked.execution,
        replace(known.schedule, rows=rows, length=length),
        corpus.load("topics"),
        device,
        asked.mode,
    )
    record = steps.timed(step, "", asked.pairs)
    same = (rows, length) == (known.schedule.rows, known.schedule.length)
    return record if same else record.model_copy(update={"variant": f"{rows}x{length}"})


def line(record: Throughput, length: int) -> str:
    """One line of the table."""
    found = speed.measured(record)
    gib = record.bf16_memory / 2**30
    return (
        f"{length:>6} {record.cell.label:<20} {found.ratio:.3f}x [{found.low:.3f}, {found.high:.3f}], "
        f"{found.bf16_tokens_per_second:,.0f} -> {found.tokens_per_second:,.0f} tokens/s, BF16 {gib:.1f} GiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="1b", choices=sorted(TIMED))
    parser.add_argument("--recipe", action="append", help="(repeatable; default: te-current)")
    parser.add_argument("--execution", type=Execution, default=Execution.FUSED)
    parser.add_argument("--length", type=int, action="append", help="(repeatable; default: 512, 2048, 8192, 32768)")
    parser.add_argument("--tokens", type=int, help="tokens of a step (default: the suite's)")
    parser.add_argument(
        "--mode",
        type=Mode,
        help="how a step runs (default: as in the suite); a graph keeps the host out, and needs memory",
    )
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help="pairs of blocks")
    parser.add_argument("--records", type=Path, default=Path(".parity/lengths"), metavar="DIR")
    args = parser.parse_args()
    here = hardware.detect(None)
    if here.capability is None:
        raise SystemExit("this needs a GPU: times of a CPU say nothing")
    preload(here.capability)
    args.records.mkdir(parents=True, exist_ok=True)
    suite = TIMED[args.model]
    for recipe in args.recipe or ["te-current"]:
        asked = Asked(
            args.model,
            recipe,
            args.execution,
            args.tokens or suite.schedule.tokens,
            args.mode or suite.mode,
            args.pairs,
        )
        for length in args.length or LENGTHS:
            try:
                record = timed(asked, length, torch.device(here.device))
            except (RuntimeError, ValueError):  # such as too little memory: the other lengths are still timed
                print(
                    f"{length:>6} {recipe} FAILED: {traceback.format_exc(limit=1).splitlines()[-1][:200]}", flush=True
                )
                continue
            write_json(args.records / name_of(record), record)
            print(line(record, length), flush=True)


if __name__ == "__main__":
    main()
