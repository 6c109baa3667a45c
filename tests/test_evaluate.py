"""From records to verdicts: one function, pure, machine by machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.judging.evaluate import evaluate, stages
from fp8parity.judging.policy import LossRow, Policy, SpeedRow
from fp8parity.judging.policy.rows import Rule
from fp8parity.judging.references import Goldens, pooling
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement, Measurements
from timings import GPU, HERE, made

WHY = "a made-up row"
POLICY = Policy(
    path=Path("policy.toml"),
    loss=(LossRow(margin=0.005, seeds=(3, 5, 8), why=WHY),),
    speed=(SpeedRow(band=0.05, memory_band=0.05, why=WHY),),
    rule=(Rule(check=("gemm",), low=28, high=29, why=WHY),),
)
GAPS = (1e-4, 4e-4, -3e-4)


@pytest.fixture
def goldens(trajectory):
    return Goldens(loss={("nano", "topics"): from_runs([trajectory(seed=s) for s in range(8)], [])})


@pytest.fixture
def runs(trajectory):
    """BF16 and te-current on a device, both off by ``shift``; te-current by ``gap`` more."""

    def make(device="EPYC", shift=0.0, gap=0.0, recipes=("bf16", "te-current"), session="s"):
        own = {"provenance": trajectory().provenance.model_copy(update={"device": device}), "session": session}
        shifts = {"bf16": lambda s: shift, "te-current": lambda s: shift + gap + GAPS[s]}
        return [trajectory(r, s, shifts[r](s), **own) for r in recipes for s in range(3)]

    return make


def test_a_control_of_another_machine_is_none(runs, goldens):
    records = runs(recipes=("bf16",)) + runs("H200", recipes=("te-current",))
    _, second = evaluate(records, goldens, POLICY)
    [verdict] = second.verdicts
    assert verdict.status == "error"
    assert verdict.headline == "seed 0, 1, 2: no BF16 control of the same machine and packages on record"


def test_each_kind_of_record_is_judged(runs, goldens, trajectory):
    cell = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
    source = trajectory().provenance.model_copy(update={"device": GPU})
    check = Measurements(
        cell=cell, check="gemm", values=[Measurement(metric="a", where="b", value=28.5)], provenance=source, session="s"
    )
    timing = made(provenance=source)
    [found] = evaluate([*runs(GPU), check, timing], goldens, POLICY)
    assert [(v.check, v.status) for v in found.verdicts] == [
        ("gemm", "pass"), ("throughput", "no-golden"), ("loss parity", "pass"), ("loss parity", "pass"),
    ]  # fmt: skip


@pytest.mark.parametrize(("device", "status"), [(GPU, "pass"), ("NVIDIA Other", "no-golden")])
def test_a_timing_is_held_to_the_golden_of_its_gpu(device, status):
    golden = pooling.updated(None, [made()])
    timing = made(provenance=HERE.model_copy(update={"device": device}))
    [found] = evaluate([timing], Goldens(throughput={(GPU, "base", "training-step"): golden}), POLICY)
    assert [v.status for v in found.verdicts] == [status]


class TestLooks:
    CELL = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)

    def test_they_end_where_the_golden_does(self, trajectory):
        short = Goldens(loss={("nano", "topics"): from_runs([trajectory(seed=s) for s in range(4)], [])})
        assert stages(self.CELL, short, POLICY) == (3, 4)

    def test_a_verdict_that_is_not_clear_asks_for_the_next_look(self, trajectory, goldens):
        """Three seeds are undecided; with two more of the same law the gap is clear."""
        spread = (-0.004, 0.001, 0.008)
        candidates = [
            trajectory("te-current", s, g) for s, g in enumerate((*spread, 1e-3, 1.2e-3, 0.8e-3, 1e-3, 1.1e-3))
        ]
        controls = [trajectory(seed=s) for s in range(8)]

        def status(count: int) -> str:
            return evaluate(candidates[:count] + controls[:count], goldens, POLICY)[0].verdicts[0].status

        assert [status(n) for n in stages(self.CELL, goldens, POLICY)] == ["inconclusive", "inconclusive", "pass"]


def test_a_cell_of_several_ranks_is_stale(runs, goldens):
    """The goldens are of one rank, so they say nothing of the losses and the step times of two."""
    timing = made(provenance=runs()[0].provenance)
    records = [r.model_copy(update={"cell": r.cell.model_copy(update={"ranks": 2})}) for r in (*runs(), timing)]
    [found] = evaluate(records, goldens, POLICY)
    text = "the goldens are of 1 rank, and this is a cell of 2"
    assert [(v.check, v.status, v.headline) for v in found.verdicts] == [
        ("throughput", "stale", text), ("loss parity", "stale", text), ("loss parity", "stale", text),
    ]  # fmt: skip
