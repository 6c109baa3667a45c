"""Which shard a process runs: "i/n", or what the variables of each scheduler say."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fp8parity.judging.completeness import missing
from fp8parity.planning import SCHEDULERS, shard_of
from fp8parity.records.manifest import Manifest, Outcome, Selected, Shard
from test_completeness import note, runs

SET: dict[str, tuple[dict[str, str], int, int]] = {
    "a Slurm job array": (
        {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "4"}, 3, 4,
    ),
    "a Slurm job step": ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 1, 2),
    "a Kubernetes Indexed Job": ({"JOB_COMPLETION_INDEX": "7", "FP8PARITY_SHARDS": "8"}, 8, 8),
    "a GitHub matrix": ({"STRATEGY_JOB_INDEX": "0", "STRATEGY_JOB_TOTAL": "3"}, 1, 3),
    "GitLab": ({"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "5"}, 1, 5),
    "CircleCI": ({"CIRCLE_NODE_INDEX": "1", "CIRCLE_NODE_TOTAL": "5"}, 2, 5),
    "Buildkite": ({"BUILDKITE_PARALLEL_JOB": "4", "BUILDKITE_PARALLEL_JOB_COUNT": "5"}, 5, 5),
}  # fmt: skip
"""Scheduler -> the variables of one task, and its shard."""
ONE_TASK = {"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "1"}


def test_schedulers_are_all_tested():
    assert list(SET) == [s.name for s in SCHEDULERS]


@pytest.mark.parametrize("name", SET)
def test_auto_reads_the_variables_of_a_scheduler(name):
    variables, index, count = SET[name]
    assert shard_of("auto", {"PATH": "/bin", **variables}) == Shard(index=index, count=count)


@pytest.mark.parametrize("name", SET)
def test_missing_or_wrong_variable_is_an_error(name):
    variables, *_ = SET[name]
    scheduler = next(s for s in SCHEDULERS if s.name == name)
    without = {k: v for k, v in variables.items() if k != scheduler.count}
    with pytest.raises(ValueError, match=f"{name} sets {scheduler.index}, and {scheduler.count} is not set; "):
        shard_of("auto", without)
    with pytest.raises(ValueError, match=f"{name}: {scheduler.index} is 'x', and not a number; give i/n"):
        shard_of("auto", variables | {scheduler.index: "x"})
    with pytest.raises(ValueError, match=f"{name}: shard .* does not exist"):
        shard_of("auto", variables | {scheduler.count: "0"})


def test_auto_without_a_scheduler_is_an_error():
    with pytest.raises(
        ValueError, match=r"none of these variables is set: SLURM_ARRAY_TASK_ID .*BUILDKITE_PARALLEL_JOB .*; give i/n"
    ):
        shard_of("auto", {"PATH": "/bin"})


def test_two_schedulers_are_an_error():
    slurm, gitlab = SET["a Slurm job step"], SET["GitLab"]
    with pytest.raises(ValueError, match="a Slurm job step says 1 of 2 and GitLab says 1 of 5; give i/n"):
        shard_of("auto", slurm[0] | gitlab[0])
    assert shard_of("auto", ONE_TASK | gitlab[0]) == Shard(index=1, count=5)
    assert shard_of("auto", ONE_TASK) == Shard(index=1, count=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3/2", "--parity-shard 3/2: shard 3 of 2 does not exist; shards are counted from 1"),
        ("0/2", "shard 0 of 2 does not exist"),
        ("1/0", "shard 1 of 0 does not exist"),
        ("2", "--parity-shard takes i/n, for example 2/4, or auto; not '2'"),
        ("-1/2", "not '-1/2'"),
        ("Auto", "not 'Auto'"),
    ],
)
def test_shard_text_is_i_of_n(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        shard_of(text, {})


__all__ = ["runs"]  # a fixture

SHARDS = [Shard(index=i, count=3, split="a" * 64) for i in (1, 2, 3)]


def test_all_shards_are_complete(trajectory):
    assert missing([note(trajectory, [], session=str(s.index), shard=s) for s in SHARDS], []) == []
    assert missing([note(trajectory, [])], []) == []


@pytest.mark.parametrize(
    ("control", "recipe", "others", "alone"),
    [
        (True, "skipped", True, True),
        (True, "passed", True, False),
        (True, "skipped", False, True),
        (True, None, True, False),
        (False, "skipped", True, False),  # nothing ran, which is told otherwise
    ],
)
def test_shards_without_any_recipe_are_a_problem(
    trajectory, control: bool, recipe: Outcome | None, others: bool, alone: bool
):
    """A shard that holds the control alone is sound if another shard checked a recipe. ``others``: that shard is there."""
    plain = [Selected(cell="bf16-nano-native", test="test_layers", outcome="passed")] if control else []
    tests = (
        [Selected(cell="te-current-nano-native", test="test_layers", outcome=recipe, reason="no GPU")] if recipe else []
    )
    first, second = (
        note(trajectory, [], *made, session=str(i), shard=Shard(index=i, count=2, split="abcdefghij"))
        for i, made in ((1, plain), (2, tests))
    )
    both = [first, second] if others else [first.model_copy(update={"selected": [*plain, *tests]})]
    found = [line for line in missing(both, []) if "BF16 control" in line]
    words = "only the BF16 control was checked and no recipe in 2 shards (split abcdefgh): 1 tests of recipes were skipped, first no GPU"
    assert found == ([words] if alone else [])


GPU: dict[str, Any] = {"device": "NVIDIA H100", "capability": [9, 0], "cuda": "13.0", "driver": "580"}


@pytest.mark.parametrize(
    "other",
    [
        {"split": "b" * 64},
        {"packages": {"torch": "9.9"}},
        {"device": "NVIDIA H200"},
        {"driver": "590"},
        {"cuda": "99.0"},
    ],
    ids=str,
)
def test_shards_of_another_split_or_machine_are_incomplete(trajectory, other):
    strange = SHARDS[1].model_copy(update={k: v for k, v in other.items() if k == "split"})
    there = {**GPU, **{k: v for k, v in other.items() if k != "split"}}
    notes = [note(trajectory, [], session=str(s.index), shard=s, **GPU) for s in (SHARDS[0], SHARDS[2])]
    found = missing([*notes, note(trajectory, [], session="2", shard=strange, **there)], [])
    assert [line.split(" (split")[0] for line in found] == [
        "shard 2 of 3 is missing, and shard 1, 3 is here",
        "shard 1, 3 of 3 is missing, and shard 2 is here",
    ]
    why = "; another shard was split differently, or had another device, CUDA or driver, or other packages"
    assert all(line.endswith(why) for line in found)


def gate(trajectory, name: str, *indices: int, **machine: Any) -> list[Manifest]:
    return [note(trajectory, [], session=f"{name} {i}", shard=SHARDS[i - 1], **machine) for i in indices]


@pytest.mark.parametrize("changes", [{"device": "NVIDIA H200"}, {"driver": "590"}, {"cuda": "99.0"}], ids=str)
def test_other_machine_does_not_cover_a_shard(trajectory, changes):
    whole, there = gate(trajectory, "a", 1, 2, 3, **GPU), {**GPU, **changes}
    [line] = missing([*whole, *gate(trajectory, "b", 1, 3, **there)], [])
    assert line.startswith("shard 2 of 3 is missing, and shard 1, 3 is here")
    assert missing([*whole, *gate(trajectory, "b", 1, 2, 3, **there)], []) == []
