"""``fp8parity masters``: hold the master weights that TE's FusedAdam keeps to AdamW in FP64."""

from __future__ import annotations

import argparse

from fp8parity.cli.common import FLAG, Command, Exit
from fp8parity.report import terminal
from fp8parity.report.blocks import Table
from fp8parity.report.terminal import Screen

COLUMNS = ("masters and moments", "number", "measured", "lowest", "highest", "")
WIDTH = 100
"""Of the table, in characters."""


def _run(args: argparse.Namespace) -> int:
    import torch
    from fp8parity.checks.canary import SCHEDULE
    from fp8parity.training.hardware import detect

    from fp8parity_lab.fused_adam import emulation, masters

    device = "cpu" if args.emulated else detect(None).device
    if args.emulated:
        emulation.emulate()
    elif device == "cpu":
        raise ValueError("FusedAdam runs on a GPU, and this machine has none; give --emulated for its arithmetic")
    found = [held for name in emulation.NAMES for held in masters.held(name, SCHEDULE, torch.device(device))]
    rows = [
        (h.where, h.metric, f"{h.value:.6g}", f"{h.low:g}", f"{h.high:g}", "" if h.inside else "fail") for h in found
    ]
    print(terminal.text(Screen(WIDTH), Table("Kept master weights", COLUMNS, rows, numbers=2)), flush=True)
    return Exit.OK if all(h.inside for h in found) else Exit.RED


COMMAND = Command(
    "hold the master weights that TE's FusedAdam keeps to AdamW in FP64",
    _run,
    {"--emulated": ("compute its arithmetic, written from TE 2.20.2, without TE or a GPU", FLAG)},
    example="fp8parity masters --emulated",
)
