"""How spreads come into the loss goldens of a folder: which runs belong together, which are too few, and which spread they replace."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references import noise as spreads
from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import write_json
from paired import Make

NATIVE = LossRow(margin=0.001, window=8, execution=(Execution.NATIVE,), seeds=(3,), why="made-up native runs")
EMULATED = LossRow(margin=0.001, window=8, execution=(Execution.EMULATED,), seeds=(2, 3), why="made-up emulated runs")
APART = LossRow(margin=0.002, window=8, recipe=("te-block", "te-mxfp8"), why="made-up runs of others")


@pytest.fixture
def bare(golden: Golden) -> Golden:
    return golden.model_copy(update={"spreads": []})


@pytest.fixture
def folder(tmp_path: Path, bare: Golden) -> Path:
    write_json(tmp_path / Golden.model_construct(model=bare.model, corpus=bare.corpus).path, bare)
    return tmp_path


def policy(*rows: LossRow) -> Policy:
    return Policy(path=Path("policy.toml"), loss=rows)


def runs_of(run: Make, recipe: str, count: int, execution: str = "native") -> list[Trajectory]:
    """As many seeds of a recipe."""
    made = [run(recipe, seed, 3) for seed in range(count)]
    return [r.model_copy(update={"cell": r.cell.model_copy(update={"execution": Execution(execution)})}) for r in made]


def controls(run: Make) -> list[Trajectory]:
    return [run(seed=s) for s in range(4)]


def stored(folder: Path) -> list[tuple[list[str], int, int]]:
    [golden] = store.load(folder, Golden).values()
    return [(s.recipes, s.runs, s.seeds) for s in golden.spreads]


def pairs(run: Make, *recipes: str) -> list[spreads.Pair]:
    return [(run(recipe, seed, 3), run(seed=seed)) for recipe in recipes for seed in range(3)]


def test_three_seeds_are_a_spread_and_two_are_not(folder, run):
    records = [
        *controls(run),
        *runs_of(run, "te-current", 3),
        *runs_of(run, "te-mxfp8", 2),
        *runs_of(run, "te-block", 2),
    ]
    said, *changes = spreads.store(folder, records, policy(NATIVE, APART))
    assert said == "nano on topics: no spread of te-block, te-mxfp8: 2 seeds, and 3 are needed"
    assert changes and all(line.startswith("nano on topics: ") for line in changes)
    assert stored(folder) == [(["te-current"], 3, 3)]


def test_recipes_and_executions_of_rows_that_say_the_same_share_a_spread(folder, run):
    """The rows differ in execution, seeds and reason alone. A row with another margin has a spread of its own."""
    records = [
        *controls(run),
        *runs_of(run, "te-current", 3),
        *runs_of(run, "te-nvfp4", 3, "emulated"),
        *runs_of(run, "te-block", 3),
    ]
    spreads.store(folder, records, policy(NATIVE, EMULATED, APART))
    assert stored(folder) == [(["te-current", "te-nvfp4"], 6, 3), (["te-block"], 3, 3)]


def test_runs_of_a_model_without_a_golden_are_left_out(folder, run):
    """Their rows are not asked for."""
    others = [
        r.model_copy(update={"cell": r.cell.model_copy(update={"model": "tiny"})})
        for r in [*controls(run), *runs_of(run, "x", 3)]
    ]
    assert spreads.store(folder, others, policy()) == []
    assert stored(folder) == []


def test_a_spread_replaces_those_of_its_recipes_and_no_other(bare, run):
    first = spreads.with_spread(bare, pairs(run, "te-current"), 8)
    both = spreads.with_spread(first, pairs(run, "te-block", "te-mxfp8"), 8)
    assert [s.recipes for s in both.spreads] == [["te-current"], ["te-block", "te-mxfp8"]]
    again = spreads.with_spread(both, pairs(run, "te-current")[:2], 16)
    assert [(s.recipes, s.runs, s.window) for s in again.spreads] == [
        (["te-block", "te-mxfp8"], 6, 8),
        (["te-current"], 2, 16),
    ]


def test_a_spread_that_several_recipes_share_is_replaced_as_a_whole(bare, run):
    shared = spreads.with_spread(bare, pairs(run, "te-block", "te-current", "te-mxfp8"), 8)
    with pytest.raises(
        ValueError, match=r"^the spread of te-block, te-mxfp8 rests on the same row; give runs of these recipes, too$"
    ):
        spreads.with_spread(shared, pairs(run, "te-current"), 8)


def test_the_time_and_the_origin_of_a_spread_are_those_of_its_first_device(run):
    """The time is the mean of a run and its control, rounded to hundredths of a second."""
    found = []
    for (r, control), device, seconds in zip(
        pairs(run, "te-current"), ("a", "a", "b"), (10.0, 10.111, 500.0), strict=True
    ):
        mine = r.provenance.model_copy(update={"device": device, "commit": f"{r.seed}" * 40})
        theirs = mine.model_copy(update={"commit": "f" * 40})
        timed = {"seconds": seconds, "provenance": mine}
        found.append((r.model_copy(update=timed), control.model_copy(update={"seconds": 2.5, "provenance": theirs})))
    made = spreads.spread(found, 40, 8)
    assert (made.provenance, made.seconds) == (found[0][0].provenance, 12.56)
