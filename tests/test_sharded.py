"""A sharded run beside the same work on one rank: sound ones pass their rules, planted faults of the sharding are red."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity import checks
from fp8parity.distributed import launch
from fp8parity.judging.verdict import NumericsDetail
from fp8parity.records.schema import Measurements
from sessions import cell, verdict

pytestmark = pytest.mark.slow


@pytest.fixture
def judged(session, trajectory, monkeypatch):
    """The metrics and places that a fault on two ranks turns red."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))

    def run(fault: str, task: str = "rank_faults:first_arm", recipe: str = "bf16", check: str = "sharded") -> set[str]:
        of = cell(recipe, "native" if recipe == "bf16" else "emulated", "micro").model_copy(update={"ranks": 2})
        monkeypatch.setenv("FP8PARITY_PLANT", fault)
        values, _ = launch.launch(task, session.spec(of), program="rank_faults")
        record = Measurements(cell=of, check=check, values=values, provenance=trajectory().provenance, session="s")
        found = verdict(record.model_copy(update={"schema_version": 1}))  # of this schema some numbers are enough
        assert (found.status == "pass") == (fault == ""), found.headline
        assert isinstance(found.detail, NumericsDetail)
        return {f.metric for f in found.detail.failing}

    return run


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("same batches", {"first loss gap", "first gradient norm", "tail gap"}),
        ("one gradient not reduced", {"highest first gradient"}),
        ("summed", {"first gradient norm", "lowest first gradient", "highest first gradient"}),
        ("tables cast", {"first loss gap", "highest first gradient"}),
    ],
)
def test_a_fault_of_the_sharding_is_red(judged, fault, metrics):
    assert metrics <= judged(fault)


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [("", set()), ("option ignored", {"bytes of a gathered weight"}), ("precompute forgotten", {"scale reductions"})],
)
def test_what_goes_over_the_wire_is_counted(judged, fault, metrics):
    assert judged(fault, "rank_faults:gathered_in_fp8", "ao-tensorwise") == metrics


@pytest.mark.parametrize(
    ("fault", "metrics"),
    [
        ("scale rounded", {"highest gain", "next loss difference", "highest gain after the next step"}),
        ("optimiser lost", {"highest gain after the next step", "lowest gain after the next step"}),
    ],
)
def test_what_a_checkpoint_loses_is_seen(judged, fault, metrics):
    found = judged(fault, "fp8parity.distributed.checkpoint:measure", check="sharded checkpoint")
    assert found & metrics


@pytest.mark.parametrize("recipe", ["bf16", "ao-tensorwise"])
def test_sound_cells_pass(session, recipe):
    of = cell(recipe, "native" if recipe == "bf16" else "emulated", "micro").model_copy(update={"ranks": 2})
    for check in ("sharded", "sharded checkpoint"):
        assert session.numerics(check, of).status == "pass", check


def test_three_ranks_share_unevenly(session):
    of = cell("bf16", "native", "micro").model_copy(update={"ranks": 3})
    assert session.numerics("uneven shards", of).status == "pass"


@pytest.mark.parametrize(("recipe", "execution"), [("bf16", "native"), ("ao-tensorwise", "emulated")])
def test_split_linears(session, recipe, execution):
    assert session.numerics("tensor parallel", cell(recipe, execution).model_copy(update={"ranks": 2})).status == "pass"


def test_what_cannot_run_here_says_why(session):
    def why(check: str, recipe: str, execution: str, ranks: int) -> str | None:
        return session.skip_reason(check, cell(recipe, execution, "micro").model_copy(update={"ranks": ranks}))

    assert why("sharded", "bf16", "native", 4) == "4 ranks need 4 GPUs; a CPU runs at most 3"
    assert why("sharded", "bf16", "native", 2) is None
    assert why("tensor parallel", "ao-rowwise", "emulated", 2) == (
        "has no tensor-parallel linear that this check knows: torchao's take tensorwise scales"
    )
    assert why("amax groups", "ao-tensorwise", "emulated", 2) == "reduces no amaxes of delayed scaling over ranks"
    assert why("weak scaling", "ao-tensorwise", "emulated", 2) == "CPU time is never gated"
    assert "sharded" in checks.CHECKS
