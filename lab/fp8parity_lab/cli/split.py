"""``fp8parity split``: show where the time of a step or block goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from fp8parity.cli import blocks, common, gemm
from fp8parity.cli.blocks import TIMED_OPTIONS
from fp8parity.cli.common import FILE, FLAG, Command, Options
from fp8parity.judging import speed
from fp8parity.records.cell import DEFAULT_CORPUS, Cell
from fp8parity.records.schema import AnyRecord, Throughput, TimeSplit
from fp8parity.report import terminal
from fp8parity.report.escape import say
from fp8parity.report.terminal import Screen
from fp8parity.workload.schedule import TIMED

from fp8parity_lab.splitting import filters, page


def _run(args: argparse.Namespace) -> int:
    if args.given:
        return common.finish(common.show_records(args, DIVIDED, TimeSplit, page.RENDERERS, _on_record)[1])
    common.need(args, "model", "--recipe")
    from fp8parity_lab.splitting import kernels  # needs torch

    workload, recipe, runner = blocks.workload_of(args), blocks.recipe_of(args), blocks.runner_of(args)
    begin = common.progress(3 if args.measure_filter else 1)
    if args.model in TIMED and not args.block:
        if args.sequence or args.micro_batch:
            raise ValueError("--sequence and --micro-batch are those of a block; add --block, or leave them out")
        cell = Cell(model=args.model, recipe=recipe.name, execution=args.execution, corpus=DEFAULT_CORPUS)
        begin(f"a step of {args.model} with {recipe.name} and BF16")
        record = kernels.of_step(runner, cell)
    else:
        begin(f"a block of {args.model} with {recipe.name} and BF16")
        record = kernels.of_block(runner, recipe, args.execution, workload)
    print(table(record), flush=True)
    proposal = filters.propose(record)
    if args.measure_filter and proposal:
        # Time the block without and with the filter.
        begin("a block without the filter")
        without = runner.time_block(recipe, args.execution, workload)
        begin("a block with the filter")
        name, filtered = blocks.variant(proposal.filters), (*recipe.filters, *proposal.filters)
        having = runner.time_block(replace(recipe, filters=filtered), args.execution, workload, name)
        found = filters.Filtered(having.variant, speed.measured(without), speed.measured(having))
        say(f"  a block: {blocks.line(without)}\n  filtered: {blocks.line(having)}")
        say(f"  a block with the filter: {page.gain(found)}")
    return common.finish(common.write_tables(args, page.RENDERERS, [record]))


def _on_record(split: TimeSplit, records: Sequence[AnyRecord]) -> str:
    timed = filters.filtered(split, [r for r in records if isinstance(r, Throughput)])
    return f"{split.provenance.device}: {split.content}\n{table(split, timed)}"


def table(split: TimeSplit, timed: Sequence[filters.Filtered] = ()) -> str:
    """Render the tables of a split for a terminal."""
    return terminal.text(Screen(gemm.WIDTH), *page.blocks_of(split, timed))


DIVIDED: Options = {
    "model": (blocks.MODEL, {"nargs": "?"}),
    "--recipe": ("the recipe", {}),
    **TIMED_OPTIONS,
    "--block": ("divide a block, also if suites/throughput times the model's whole step", FLAG),
    "--measure-filter": ("also time a block with the proposed filter and without", FLAG),
}
COMMAND = Command(
    "say where the time of a step goes, and what to keep in BF16",
    _run,
    {**DIVIDED, **common.ON_RECORD, "--plot": ("also write plots and tables as a page", FILE)},
    example="fp8parity split 1b --recipe te-current",
)
