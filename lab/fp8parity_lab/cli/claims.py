"""``fp8parity claims SET...``: show published numbers next to those of record sets."""

from __future__ import annotations

import argparse
import sys

from fp8parity.cli.common import PATHS, SETS, Command, finish, references_in, reports, write_files
from fp8parity.judging.evaluate import evaluate
from fp8parity.records import sets
from fp8parity.report import terminal
from fp8parity.report.blocks import Paragraph, Plot
from fp8parity.report.terminal import Screen

from fp8parity_lab import claims


def _run(args: argparse.Namespace) -> int:
    stored, found = references_in(args.golden_dir), claims.load()
    evaluated = evaluate(sets.load(args.records), *stored)
    sections = [claims.section(found, e, number) for number, e in enumerate(evaluated)]
    unwritten = write_files(reports(claims.RENDERERS, *((sections, path) for path in args.report)))
    for section in sections:
        blocks = [block for block in section.blocks if not isinstance(block, Plot)]
        print(terminal.text(Screen.of(sys.stdout), Paragraph(section.title), *blocks), flush=True)
    return finish(unwritten)


COMMAND = Command(
    "show what others published about a recipe, next to record sets",
    _run,
    {"records": (SETS, PATHS)},
    claims.RENDERERS,
    golden_dir=True,
    example="fp8parity claims golden/records/h200-throughput.zip",
)
