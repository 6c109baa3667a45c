"""``fp8parity unused SET...``: list the rows and goldens that no record needed."""

from __future__ import annotations

import argparse

from fp8parity.cli.common import PATHS, SETS, Command, Exit, references_in
from fp8parity.judging.evaluate import evaluate
from fp8parity.records import sets
from fp8parity.report.escape import say

from fp8parity_lab.unused import unused


def _run(args: argparse.Namespace) -> int:
    stored, rules = references_in(args.golden_dir)
    lines = unused(evaluate(sets.load(args.records), stored, rules), stored, rules)
    say("\n".join(lines) or "these records need every row and golden")
    return Exit.OK


COMMAND = Command(
    "list the rows of a policy and the goldens that no record needed",
    _run,
    {"records": (SETS, PATHS)},
    golden_dir=True,
    example="fp8parity unused golden/records/h100-gate-sixth.zip",
)
