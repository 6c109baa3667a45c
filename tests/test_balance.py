"""Tests are split over shards: none is lost, none runs twice, and every machine splits them alike."""

from __future__ import annotations

import math
import random

from fp8parity.planning.balance import Work, digest_of, in_order, seconds_of, split
from hypothesis import given
from hypothesis import strategies as st

CONTROLS = {"": 0.0, "tiny": 3.0, "small": 40.0}
WORKS = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(0, 1000), st.sampled_from(sorted(CONTROLS))),
    max_size=60,
    unique_by=lambda w: w[0],
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


@given(WORKS)
def test_the_order_keeps_every_test(works):
    assert sorted(w.name for w in in_order(works)) == sorted(w.name for w in works)


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


def test_the_longest_test_comes_first_unless_its_order_says_otherwise():
    works = [Work(f"test{n}", float(n), order=1.5 if n % 3 == 0 else None) for n in range(1, 7)]
    controls = [
        Work("bf16 small", 0.0, "small", 9.0, order=math.inf),
        Work("bf16 tiny", 0.0, "tiny", 1.0, order=math.inf),
    ]
    random.Random(0).shuffle(works)
    wanted = ["bf16 small", "bf16 tiny", "test5", "test4", "test2", "test3", "test6", "test1"]
    assert [w.name for w in in_order([*works, *reversed(controls)])] == wanted
