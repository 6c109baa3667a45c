"""Split gates: whether all shards are there, and whether one of them checked a recipe."""

from __future__ import annotations

from typing import Any

import pytest
from fp8parity.judging.completeness import missing, missing_shards
from fp8parity.records.manifest import Manifest, Outcome, Selected, Shard
from test_completeness import note, runs

__all__ = ["runs"]  # a fixture

SHARDS = [Shard(index=i, count=3, split="a" * 64) for i in (1, 2, 3)]


def test_all_shards_are_complete(trajectory):
    assert missing_shards([note(trajectory, [], session=str(s.index), shard=s) for s in SHARDS]) == []
    assert missing_shards([note(trajectory, [])]) == []


def test_missing_shard_is_named(trajectory, runs):
    notes = [note(trajectory, runs, session="1", shard=SHARDS[0]), note(trajectory, [], session="3", shard=SHARDS[2])]
    assert missing(notes, runs) == ["shard 2 of 3 is missing, and shard 1, 3 is here (split aaaaaaaa)"]


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
    found = missing_shards([*notes, note(trajectory, [], session="2", shard=strange, **there)])
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


@pytest.mark.parametrize(
    ("here", "there", "lost"),
    [((1, 3), (2,), 0), ((1, 3), (2, 3), 0), ((1,), (2,), 1), ((1, 2, 3), (1, 3), 1), ((1, 2, 3), (1, 2, 3), 0)],
)
def test_shards_may_run_on_several_cpus(trajectory, here, there, lost):
    """A CPU that has all shards is a gate of its own, and covers nothing of another."""
    cpus: dict[str, Any] = {"capability": None, "cuda": None, "driver": None}
    both = gate(trajectory, "a", *here, device="EPYC", **cpus) + gate(trajectory, "b", *there, device="Xeon", **cpus)
    assert len(missing_shards(both)) == lost
