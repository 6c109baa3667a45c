"""Tests are split over shards: none is lost, none runs twice, and every machine splits them alike."""

from __future__ import annotations

import random

import pytest
from fp8parity.planning.balance import Work, digest_of, for_workers, seconds_of, split
from hypothesis import given
from hypothesis import strategies as st

CONTROLS = {"": 0.0, "tiny": 3.0, "small": 40.0}
WORKS = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(0, 1000), st.sampled_from(sorted(CONTROLS))), max_size=60, unique_by=lambda w: w[0]
).map(lambda rows: [Work(f"test_{n}", s, control, CONTROLS[control]) for n, s, control in rows])
COUNTS = st.integers(1, 9)


@given(WORKS, COUNTS)
def test_nothing_is_lost_and_nothing_runs_twice(works, count):
    places = split(works, count)
    assert len(places) == count
    assert sorted(w.name for place in places for w in place) == sorted(w.name for w in works)


@given(WORKS, COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_collection_does_not_matter(works, count, draw):
    shuffled = draw.sample(works, len(works))
    assert split(shuffled, count) == split(works, count)
    assert digest_of(split(shuffled, count)) == digest_of(split(works, count))


@given(WORKS, COUNTS)
def test_no_place_is_empty_if_there_is_enough_to_do(works, count):
    empty = sum(not place for place in split(works, count))
    assert empty == max(0, count - len(works))


@given(WORKS, COUNTS)
def test_the_fullest_place_is_near_the_best_one_possible(works, count):
    """Graham's bound, with each control made in every place at worst."""
    fullest = max(map(seconds_of, split(works, count)))
    alone = max((w.seconds + w.shared_seconds for w in works), default=0.0)
    assert fullest <= seconds_of(works) / count + alone + sum(CONTROLS.values()) + 1e-6


@given(WORKS, COUNTS)
def test_the_order_for_workers_keeps_every_test(works, workers):
    assert sorted(w.name for w in for_workers(works, workers)) == sorted(w.name for w in works)


def test_a_recipe_goes_where_its_control_is_made():
    """Two models on two machines: each control is trained once."""
    works = [Work(f"{recipe}-{model}", 10.0, model, 30.0) for model in ("tiny", "small") for recipe in ("a", "b", "c")]
    assert [{w.shared for w in place} for place in split(works, 2)] == [{"small"}, {"tiny"}]
    assert [seconds_of(place) for place in split(works, 2)] == [60.0, 60.0]


def test_a_control_is_made_again_if_that_is_faster():
    works = [Work(f"recipe{n}", 100.0, "small", 5.0) for n in range(4)]
    assert [seconds_of(place) for place in split(works, 2)] == [205.0, 205.0]


def test_another_split_has_another_digest():
    works = [Work(f"test{n}", float(n)) for n in range(8)]
    others = [works[:-1], [Work(w.name, 8 - w.seconds) for w in works]]
    found = {digest_of(split(other, 3)) for other in (works, *others)} | {digest_of(split(works, 2))}
    assert len(found) == 4


def dealt(works: list[Work], workers: int) -> list[list[Work]]:
    """The parts as pytest-xdist's WorkStealingScheduling deals them."""
    pending, parts = list(works), []
    for left in range(workers, 0, -1):
        size = len(pending) // left
        parts.append(pending[:size])
        pending = pending[size:]
    return parts


@pytest.mark.parametrize("workers", [1, 3, 8])
def test_each_worker_begins_with_a_longest_test_and_a_short_one_follows(workers):
    works = [Work(f"test{n:02}", float(n * n)) for n in range(50)]
    random.Random(0).shuffle(works)
    parts = dealt(for_workers(works, workers), workers)
    assert {part[0].seconds for part in parts} == {float(n * n) for n in range(50 - workers, 50)}
    assert all(part[1] == min(part, key=lambda w: w.seconds) for part in parts)
    sums = [sum(w.seconds for w in part) for part in parts]
    assert max(sums) - min(sums) < 49**2


def test_fewer_tests_than_workers_are_all_dealt():
    assert [w.name for w in for_workers([Work("a", 1.0), Work("b", 2.0)], 5)] == ["b", "a"]
    assert for_workers([], 3) == []


@pytest.mark.parametrize("workers", [1, 3])
def test_later_stages_are_the_last_of_each_worker(workers):
    """Planted: the check of a cell's kernels began together with its training, and both compiled the same ones."""
    works = [Work(f"test{n}", float(n), stage=(n % 4 == 0) + (n % 8 == 0)) for n in range(48)]
    for part in dealt(for_workers(works, workers), workers):
        stages = [w.stage for w in part]
        assert stages == sorted(stages) and set(stages) == {0, 1, 2}
        assert part[0].seconds == max(w.seconds for w in part if not w.stage)
