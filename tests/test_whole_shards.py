"""Split gates: whether all shards are there, and whether one of them checked a recipe."""

from __future__ import annotations

import pytest
from fp8parity.judging.completeness import lost_shards, missing
from fp8parity.records.manifest import Outcome, Selected, Shard
from test_completeness import note, runs

__all__ = ["runs"]  # a fixture

SHARDS = [Shard(index=i, count=3, split="a" * 64) for i in (1, 2, 3)]


def test_all_shards_make_a_whole_set(trajectory):
    assert lost_shards([note(trajectory, [], session=str(s.index), shard=s) for s in SHARDS]) == []
    assert lost_shards([note(trajectory, [])]) == []


def test_a_lost_shard_is_named(trajectory, runs):
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
def test_shards_that_checked_no_recipe_are_no_gate(trajectory, control: bool, recipe: Outcome | None, others: bool, alone: bool):
    """A shard that holds the control alone is sound if another shard checked a recipe. ``others``: that shard is there."""
    plain = [Selected(cell="bf16-nano-native", test="test_layers", outcome="passed")] if control else []
    tests = [Selected(cell="te-current-nano-native", test="test_layers", outcome=recipe, reason="no GPU")] if recipe else []
    first, second = (
        note(trajectory, [], *made, session=str(i), shard=Shard(index=i, count=2, split="abcdefghij"))
        for i, made in ((1, plain), (2, tests))
    )
    both = [first, second] if others else [first.model_copy(update={"selected": [*plain, *tests]})]
    found = [line for line in missing(both, []) if "BF16 control" in line]
    words = "only the BF16 control was checked and no recipe in 2 shards (split abcdefgh): 1 tests of recipes were skipped, first no GPU"
    assert found == ([words] if alone else [])


@pytest.mark.parametrize("other", [{"split": "b" * 64}, {"packages": {"torch": "9.9"}}], ids=str)
def test_shards_of_another_split_or_other_packages_are_no_whole_set(trajectory, other):
    packages = {"packages": other["packages"]} if "packages" in other else {}
    strange = SHARDS[1].model_copy(update={k: v for k, v in other.items() if k == "split"})
    notes = [note(trajectory, [], session=str(s.index), shard=s) for s in (SHARDS[0], SHARDS[2])]
    found = lost_shards([*notes, note(trajectory, [], session="2", shard=strange, **packages)])
    assert [line.split(" (split")[0] for line in found] == [
        "shard 2 of 3 is missing, and shard 1, 3 is here",
        "shard 1, 3 of 3 is missing, and shard 2 is here",
    ]
    assert all(line.endswith("; another shard was split differently, or had other packages") for line in found)
