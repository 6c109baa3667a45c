"""All planted faults, in one tuple."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from faults import (
    arm,
    checkpoints,
    first_steps,
    gate,
    gemm_times,
    gemms,
    identity,
    loss_curves,
    losses,
    model,
    moments,
    operands,
    places,
    references,
    requests,
    speeds,
    state,
)
from faults.fault import Fault, Finding, Look

MODULES = (
    *(model, arm, operands, gemms, state, checkpoints, places, moments),
    *(losses, identity, first_steps, loss_curves, speeds, gemm_times),
    *(gate, references, requests),
)
CATALOGUE = tuple(replace(fault, name=name) for module in MODULES for name, fault in module.FAULTS.items())


def findings() -> Iterator[tuple[Fault, Finding]]:
    """Every fault with everything that must find it."""
    return ((fault, finding) for fault in CATALOGUE for finding in fault.seen)


def id_of(fault: Fault, finding: Finding) -> str:
    """The id of a test: the fault and its check, with the cell if another look has the same check."""
    alike = [f for f in fault.seen if f.look.check == finding.look.check]
    return f"{fault.name}, {finding.look.check}" + (f", {finding.look.where}" if len(alike) > 1 else "")


def looks(kind: type[Look]) -> list[Look]:
    """The different looks of a kind, in the order of their first use."""
    return list(dict.fromkeys(f.look for _, f in findings() if type(f.look) is kind))
