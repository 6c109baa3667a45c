"""--parity-stress: sound recipes keep their numbers, and each planted fault is red with the name of its stress."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fp8parity.checks import CHECKS, Check, Result, RunSpec, stress, stresses
from fp8parity.checks.protocol import linear_pass, numbers_of
from fp8parity.numerics import emulation
from sessions import cell, shorten, verdict
from torch import Tensor

CPU = torch.device("cpu")
CALLS = itertools.count()
MIB = 2**20
MEMORY = {"filled memory", "memory of NaN", "memory of large values"}


def unwritten(size: int = 1) -> Tensor:
    """Memory that nobody wrote, zeros in a quiet process.

    So much is a mapping of its own, or free memory of the heap. That is given back first, but for the page it begins in.
    """
    ctypes.CDLL(None).malloc_trim(0)
    return torch.empty(2**24)[2**23 :][:size]


def fails_on_nan(y: Tensor) -> Tensor:
    if unwritten().isnan():
        raise RuntimeError("an illegal index")
    return y


def children() -> int:
    """Return how many processes this one runs."""
    found = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, *_ = stat.read_text().rpartition(")")[2].split()
            found += int(parent) == os.getpid() and state != "Z"
    return found


QUIET = {"threads": 1, "children": 0}
"""The threads and children of this process without a stress: earlier tests may leave some."""
IDLE = "import time\nprint(1, flush=True)\ntime.sleep(600)"
"""Another process that starts in no time. A sound recipe has the real one."""
PLANTS: dict[str, tuple[Callable[[Tensor], Tensor], set[str]]] = {
    "adds what nobody wrote": (lambda y: (y + unwritten()).to(y.dtype), MEMORY),
    "looks at what nobody wrote": (lambda y: torch.where(unwritten() > 1, 2 * y, y), {"memory of large values"}),
    "raises on a NaN": (fails_on_nan, {"filled memory", "memory of NaN"}),
    "does not wait": (lambda y: y * (1 + (threading.active_count() > QUIET["threads"])), {"a competing stream"}),
    "another process disturbs": (lambda y: y * (1 + (children() > QUIET["children"])), {"a competing process"}),
    "another result each time": (lambda y: y * (1 + next(CALLS) * 2**-8), set(stress.STRESSES)),
    "another kernel in deterministic mode": (lambda y: y * (1 + torch._C._get_deterministic_algorithms()), set()),
    "nothing": (lambda y: y, set()),
}


def one_linear(spec: RunSpec) -> Result:
    x = torch.linspace(0.5, 1, 32 * 32).bfloat16().view(32, 32)
    found = linear_pass(spec.linear(x, tokens=32), x.clone(), x)
    return numbers_of("fprop gain", {name: float(y.double().norm()) for name, y in found.items()}), []


def changed(record) -> set[str]:
    return {m.where for m in record.values if m.metric == stress.METRIC and m.value}


@pytest.mark.parametrize(("name", "recipe"), [*((name, "te-current") for name in PLANTS), ("nothing", "te-nvfp4")])
def test_planted_fault_is_red_under_its_stress(name, recipe, session, eager, monkeypatch):
    """te-nvfp4 rounds stochastically: each stress must draw the same noise."""
    plant, seen = PLANTS[name]
    monkeypatch.setitem(QUIET, "threads", threading.active_count())
    monkeypatch.setitem(QUIET, "children", children())
    monkeypatch.setattr(stresses, "PROCESS", IDLE)
    real = emulation.gemm
    monkeypatch.setattr(emulation, "gemm", lambda *args: plant(real(*args)))
    monkeypatch.setitem(CHECKS, "gemm", Check("gemm", one_linear))
    record = session.measure("gemm", cell(recipe), stress=True)
    assert changed(record) == seen
    judged = verdict(record)
    assert {place for place, _ in judged.lines if place.startswith(stress.METRIC)} == {
        f"{stress.METRIC} @ {s}" for s in seen
    }
    assert not seen or (judged.status == "fail" and judged.message().startswith("te-current-tiny-emulated: gemm fail"))
    assert all(f"{one}: " in " ".join(record.notes) for one in seen)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "recipe", "process"),
    [("state", "te-delayed", IDLE), ("gemm", "ao-rowwise", stresses.PROCESS)],
    ids=["state", "gemm"],
)
def test_sound_recipe_keeps_its_numbers(check, recipe, process, session, eager, monkeypatch):
    shorten(monkeypatch)
    monkeypatch.setattr(stresses, "PROCESS", process)
    record = session.measure(check, cell(recipe, model="nano"), stress=True)
    assert (changed(record), len(record.notes)) == (set(), len(session.measure(check, record.cell).notes))
    assert {m.where for m in record.values if m.metric == stress.METRIC} == set(stress.STRESSES)


@pytest.mark.parametrize(("check", "vendor"), [("gemm", True), ("attention", False)])
def test_memory_is_filled_without_the_mode_that_a_vendor_refuses(check, vendor):
    with stresses.deterministic(check, CPU, fill=True):
        assert torch.empty(8).isnan().all()
        assert torch.are_deterministic_algorithms_enabled() is vendor
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


def test_memory_that_cannot_be_poisoned_is_an_error(monkeypatch):
    monkeypatch.setattr(stresses.ctypes, "CDLL", lambda _: None)
    with (
        pytest.raises(ValueError, match="the free memory of cpu could not be filled"),
        stresses.poisoned("gemm", CPU, byte=stresses.NAN),
    ):
        pass


def test_holes_are_taken_in_requests_that_the_allocator_puts_there(monkeypatch):
    def segment(size: int, *blocks: tuple[str, int], kind: str = "large", **other: Any) -> dict[str, Any]:
        of = {"device": 0, "stream": 0, "segment_pool_id": (0, 0), "segment_type": kind, "total_size": size}
        return of | {"blocks": [{"state": state, "size": of} for state, of in blocks]} | other

    part = ("active_allocated", 4 * MIB), ("inactive", 16 * MIB)
    snapshot = [
        segment(20 * MIB, *part),
        segment(2 * MIB, ("active_allocated", MIB // 2), ("inactive", 3 * MIB // 2), kind="small"),
        *(segment(20 * MIB, *part, **one) for one in ({"device": 1}, {"stream": 7}, {"segment_pool_id": (0, 1)})),
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: snapshot)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=0))
    assert stresses._holes(torch.device("cuda:0")) == [16 * MIB, MIB, MIB // 2]


@pytest.mark.parametrize(
    ("place", "change", "equal"),
    [
        ("bf16 attention sqnr @ flash, head 192", 0.009, True),
        ("bf16 attention sqnr @ efficient, head 192", 0.011, False),
        ("bf16 attention sqnr @ efficient, head 192", math.nan, False),
        ("bf16 attention sqnr @ cudnn, head 192", 1e-12, False),
        ("fp8 attention sqnr @ head 128", 1e-12, False),
    ],
)
def test_only_sums_without_an_order_may_move(place, change, equal):
    metric, where = place.split(" @ ")
    a, b = (numbers_of(metric, {where: value}) for value in (50.0, 50.0 + change))
    assert (stress._changes((a, []), (a, [])), bool(stress._changes((a, []), (b, [])))) == ([], not equal)


def test_a_competing_process_that_does_not_start_is_an_error(monkeypatch):
    monkeypatch.setattr(stresses, "PROCESS", "raise SystemExit")
    with pytest.raises(ValueError, match="ended before"), stresses.other_process("gemm", CPU):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_other_work_pauses_while_a_graph_is_captured(fails, monkeypatch):
    events: list[str] = []

    def begin(graph: object) -> None:
        events.append("begin")
        if fails:
            raise RuntimeError("no capture")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_end", lambda graph: events.append("end"))
    graph: Any = object()  # torch for a CPU has the class, and no object of it
    with stresses.competing("modes", CPU):
        try:
            torch.cuda.CUDAGraph.capture_begin(graph)
        except RuntimeError:
            events.append("failed")
        torch.cuda.CUDAGraph.capture_end(graph)
    assert events == ["begin", "failed", "end"] if fails else ["begin", "end"]
