"""A sharded run beside the same work on one rank: sound ones pass their rules, planted faults of the sharding are red."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import rank_tasks
import sessions
import torch
from fp8parity import checks
from fp8parity.checks.protocol import Result
from fp8parity.distributed import launch, parity, train
from fp8parity.distributed.sharding import ARMS, ShardedOptimizer, sharded
from fp8parity.records.cell import Cell
from fp8parity.records.schema import Measurements
from fp8parity.runner import numerics_check
from sessions import cell, verdict


@pytest.fixture
def measured(once, tmp_path, monkeypatch):
    """What two ranks measured of BF16, or of torchao's recipes: all things (``rank_tasks``) in one launch."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def found(recipe: str) -> dict[str, Result]:
        of, task = ("bf16", "rank_tasks:bf16") if recipe == "bf16" else ("ao-tensorwise", "rank_tasks:torchao")
        spec = sessions.on_cpu(tmp_path).spec(two_ranks(of))
        return once(f"two-ranks-{of}", lambda: rank_tasks.apart(launch.launch(task, spec, limit=600)))

    return found


def two_ranks(recipe: str) -> Cell:
    """One block is enough for torchao's; in BF16 a fault of the tables of RoPE is seen in the loss of two."""
    execution, small = ("native", "micro") if recipe == "bf16" else ("emulated", "nano")
    return cell(recipe, execution, small).model_copy(update={"ranks": 2})


@pytest.fixture
def judged(measured, trajectory):
    """The metrics and places that a fault on two ranks turns red."""

    def run(fault: str, kind: str = "first arm", recipe: str = "bf16", check: str = "sharded") -> set[str]:
        values, _ = measured(recipe)[f"{kind}, {fault}"]
        record = Measurements(
            cell=two_ranks(recipe), check=check, values=values, provenance=trajectory().provenance, session="s"
        )
        found = verdict(record.model_copy(update={"partial": True}))  # of this schema some numbers are enough
        assert (found.status == "pass") == (fault == ""), found.headline
        return {r.metric for r in found.rows if r.outside}

    return run


@pytest.fixture
def sound(measured, session, monkeypatch):
    """The status of a check that nothing is planted in."""

    def status(check: str, of: Cell) -> str:
        result = measured(of.recipe)[check]
        monkeypatch.setitem(checks.CHECKS, check, replace(numerics_check(check), measure=lambda spec: result))
        return session.numerics(check, of).status

    return status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("same batches", {"first loss gap", "first gradient norm", "tail gap"}),
        ("one gradient not reduced", {"highest first gradient"}),
        ("summed", {"first gradient norm", "lowest first gradient", "highest first gradient"}),
        ("tables cast", {"first loss gap", "highest first gradient"}),
    ],
)
def test_fault_of_the_sharding_is_red(judged, fault, metrics):
    assert metrics <= judged(fault)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "metrics"),
    [("", set()), ("option ignored", {"bytes of a gathered weight"}), ("precompute forgotten", {"scale reductions"})],
)
def test_what_goes_over_the_wire_is_counted(judged, fault, metrics):
    assert judged(fault, "wire", "ao-tensorwise") == metrics


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("scale rounded", {"highest gain", "next loss difference", "highest gain after the next step"}),
        ("optimizer lost", {"highest gain after the next step", "lowest gain after the next step"}),
    ],
)
def test_what_a_checkpoint_loses_is_seen(judged, fault, metrics):
    found = judged(fault, "checkpoint", check="sharded checkpoint")
    assert found & metrics


ARRIVED = {"exchanged values that differ", "returned values that differ", "exchange sqnr"}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", rank_tasks.EXCHANGED)
def test_fault_of_the_exchange_is_red(judged, recipe):
    """E8M0 and FP32 scales: each fault has its numbers, and rows of padding are no token's."""
    found = {fault: judged(fault, recipe, recipe, "expert exchange") for fault in ("", *rank_tasks.EXCHANGE)}
    padding = {"values in padding"}
    assert found.pop("") == set() and found.pop("scales of padding not written") == padding
    assert all(metrics >= ARRIVED for metrics in found.values()), found


@pytest.mark.slow
def test_arm_after_all_faults_passes(judged):
    """The ranks measure it after the faults: each was mended, and none is in the numbers of another."""
    assert judged("") == set()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "ao-tensorwise"])
def test_sound_cells_pass(sound, recipe):
    for check in ("sharded", "sharded checkpoint"):
        assert sound(check, two_ranks(recipe)) == "pass", check


@pytest.mark.slow
def test_three_ranks_share_unevenly(session):
    of = cell("bf16", "native", "nano").model_copy(update={"ranks": 3})
    assert session.numerics("uneven shards", of).status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["bf16", "ao-tensorwise"])
def test_split_linears(sound, recipe):
    assert sound("tensor parallel", two_ranks(recipe)) == "pass"


@pytest.fixture
def spec(session, one_rank):
    return session.spec(cell("bf16", "native", "nano"))


def planted(monkeypatch, change):
    """``change(model)`` once the linears are split, so that the run on one rank stays sound."""
    real = parity.split

    def split(model, spec):
        real(model, spec)
        change(model)

    monkeypatch.setattr(parity, "split", split)


def test_one_rank_is_the_whole_model(spec):
    found = {m.metric: m.value for m in parity.measure_tensor_parallel(spec)[0]}
    assert (found["largest gap"], found["tail gap"], found["tensors that differ between ranks"]) == (0.0, 0.0, 0.0)
    assert found["first gradient norm"] == pytest.approx(1.0, abs=1e-5)


def test_loss_that_is_not_finite_names_its_rank(spec, monkeypatch):
    def nan_later(model):
        real, calls = model.forward, iter(range(100))
        model.forward = lambda ids: real(ids) * (float("nan") if next(calls) == 2 * train.SHARE else 1.0)

    planted(monkeypatch, nan_later)
    with pytest.raises(ValueError, match=r"^the loss of step 2 is not finite on rank 0 \(nan\)$"):
        parity.measure_tensor_parallel(spec)


def test_gradient_that_is_not_finite_names_its_parameter(spec, monkeypatch):
    planted(monkeypatch, lambda model: model.lm_head.weight.register_hook(lambda grad: grad * float("nan")))
    with pytest.raises(
        ValueError, match=r"^step 0 is not finite, and the loss of every rank is: gradient of lm_head.weight \(1 of "
    ):
        parity.measure_tensor_parallel(spec)


NAME = "amax_reduction_group"


def test_optimizer_writes_to_the_tensors_of_fsdp(session, one_rank):
    """What FSDP2's all-gather sets on a weight (Transformer Engine's group of its amax) must still be there when it is updated."""
    spec = session.spec(cell("bf16", "native", "nano"))
    schedule = session.preset("nano").schedule
    optimizer = ShardedOptimizer(sharded(spec, schedule, ARMS[0], 0), schedule)
    gathered = [p._local_tensor for p in optimizer.params]
    for number, tensor in enumerate(gathered):
        setattr(tensor, NAME, number)
    with torch.no_grad():
        written = [optimizer.local(p) for p in optimizer.params]
    assert len(written) > 5
    assert [getattr(t, NAME) for t in written] == list(range(len(gathered)))
    before = [t.clone() for t in gathered]
    for p in optimizer.params:
        p.grad = torch.ones_like(p)
    optimizer.zero()
    optimizer.gather(1.0)
    optimizer.set_lr(0.1)
    optimizer.step(1.0)
    assert not any(torch.equal(a, b) for a, b in zip(before, gathered, strict=True))
