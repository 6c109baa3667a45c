"""Speed, memory and GEMMs of two record sets: the ratio is the recipe's, BF16's own speed the framework's."""

from __future__ import annotations

import pytest
import reports
import two_sides
from fp8parity.judging.compare import times
from fp8parity.judging.policy import Policy
from fp8parity.judging.timed import Ends
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.gemms import GemmTimes
from fp8parity.records.schema import Throughput
from fp8parity.records.sets import machines
from fp8parity.records.times import Watch
from gemm_records import ROW, changed, made, slower, watched
from sessions import GOLDEN
from two_sides import change, compared

BUSY = Watch(busy_before=90, sm_clocks=[1980], throttled=[])
BUSY_TEXT = "the GPU was 90% busy before the first block: something else runs on it"


@pytest.fixture
def timed(trajectory):
    def make(version="2.12.0", ratio=1.5, memory=0.8, bf16=1.0, device="H200", capability=(9, 0), **changes):
        wobble = [1 + 0.001 * (i % 3 - 1) for i in range(11)]
        made = two_sides.provenance(trajectory, version, device, list(capability) if capability else None)
        base = Throughput(
            cell=Cell(model="small", recipe="te-current", execution=Execution.NATIVE, corpus="topics"), mode=Mode.COMPILED, tokens=16384,
            steps_a_block=4, bf16_seconds=[bf16 * w for w in wobble], recipe_seconds=[bf16 / ratio] * 11, bf16_memory=1_000_000,
            recipe_memory=int(1_000_000 * memory), flops_per_token=1.0, peak_flops=None,
            watch=Watch(busy_before=0, sm_clocks=[1980], throttled=[]), provenance=made, session=version,
        )  # fmt: skip
        return base.model_copy(update=changes)

    return make


@pytest.mark.parametrize(
    ("new", "kind", "moved", "effect", "code"),
    [
        ({"ratio": 1.35}, "throughput", "recipe changed", "regression", 1),
        ({"ratio": 1.65}, "throughput", "recipe changed", "gain", 0),
        ({"ratio": 1.505}, "throughput", "noise", "none", 0),
        ({"bf16": 1.1}, "throughput", "framework changed", "regression", 1),
        ({"memory": 0.9}, "memory", "recipe changed", "regression", 1),
        ({"bf16_memory": 1_100_000, "recipe_memory": 880_000}, "memory", "framework changed", "regression", 1),
        ({"ratio": 1.35, "mode": "eager"}, "throughput", "cannot say", "unknown", 2),
        ({"ratio": 1.35, "watch": BUSY}, "throughput", "cannot say", "unknown", 2),
        ({"bf16_memory": 0}, "memory", "cannot say", "unknown", 2),
        ({"bf16_seconds": [1.0], "recipe_seconds": [1.0]}, "throughput", "cannot say", "unknown", 2),
        ({"ratio": 1.35, "device": "H100"}, "throughput", "shown", "none", 0),
        ({"ratio": 1.35, "capability": None}, "throughput", "shown", "none", 0),
    ],
)
def test_planted_throughput(timed, new, kind, moved, effect, code):
    found = compared([timed()], [timed("2.13.0", **new)])
    assert (change(found, kind=kind).moved, change(found, kind=kind).effect, found.code) == (moved, effect, code)


@pytest.mark.parametrize(
    ("old", "new", "notes", "machine"),
    [
        ({"watch": BUSY}, {}, [f"OLD: {BUSY_TEXT}"], "H200"),
        ({}, {"watch": BUSY}, [f"NEW: {BUSY_TEXT}"], "H200"),
        ({}, {"mode": "eager", "tokens": 1}, ["another mode", "another tokens"], "H200"),
        ({}, {"device": "H100"}, ["two different GPU models: their times are not compared"], "H200 -> H100"),
        ({}, {"device": "Xeon", "capability": None}, ["CPU time and memory are never gated"], "H200 -> Xeon"),
    ],
)
def test_what_keeps_times_from_being_compared_is_said(timed, old, new, notes, machine):
    found = compared([timed(**old)], [timed("2.13.0", **new)])
    assert [(c.notes, c.machine) for c in found.changes] == 2 * [(notes, machine)]


def test_the_interval_of_a_change_has_the_outer_edges_of_both():
    shift = Ends(3.0, 5.0, 8.0, 12).relative_to(Ends(1.0, 2.0, 4.0, 11))
    assert (shift.mean, shift.low, shift.high, shift.n) == (1.5, -0.25, 7.0, 11)


def test_step_times_are_shown_and_never_decide(trajectory):
    slow = [
        r.model_copy(update={"step_seconds": 0.3}) if r.cell.recipe != "bf16" else r
        for r in two_sides.runs(trajectory, "2.13.0")
    ]
    found = compared(two_sides.runs(trajectory), slow)
    shown = change(found, kind="step time")
    assert (shown.old, shown.new, shown.moved, found.code) == ("1.00x BF16's time", "3.00x BF16's time", "shown", 0)


RULES = Policy(path=GOLDEN, gemm=(ROW,))
LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}


def sums_of(a: GemmTimes, b: GemmTimes):
    ((old,), (new,)) = machines([a]), machines([b])
    return times.changes(old, new, RULES)


@pytest.mark.parametrize(
    ("new", "moved", "effect"),
    [
        (made(), "noise", "none"),
        (made(training=1.6 * 0.9), "recipe changed", "regression"),
        (slower(made(), 1.2), "framework changed", "regression"),
        (slower(made(training=1.4), 1.2), "both changed", "regression"),
        (made(watch=watched(busy_before=50)), "cannot say", "unknown"),
        (changed(made(), "o dgrad training", **LOST), "cannot say", "unknown"),
        (made(provenance=reports.provenance(device="Another")), "shown", "none"),
    ],
)
def test_what_moved(new, moved, effect):
    kernel, training = sums_of(made(), new)
    assert (training.moved, training.effect) == (moved, effect)
    assert (kernel.what, training.what) == ("GEMM throughput, kernel", "GEMM throughput, training")
    assert training.old == "1.600x BF16 [1.596, 1.604]"
