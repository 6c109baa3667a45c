"""The decision table: which places give which status, and who changed."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from fp8parity.judging import decide
from fp8parity.judging.decide import (
    BETTER,
    CHANGED,
    INSIDE,
    NONE,
    STATUS,
    TOO_GOOD,
    UNDECIDED,
    WORSE,
    Changed,
    Place,
    Places,
    Tolerance,
)
from fp8parity.judging.stats import Interval

ALL = [Places(*p) for p in product(Place, Place, Place, (False, True))]


def both(framework: Place, recipe: Place = NONE, total: Place = NONE, *, windows: bool = False) -> tuple[str, Changed]:
    places = Places(framework, recipe, total, windows)
    return decide.status_of(places), decide.changed_of(places)


@pytest.mark.parametrize("rules", [STATUS, CHANGED], ids=["status", "changed"])
def test_tables_answer_every_case_and_use_every_row(rules):
    first = [next(i for i, rule in enumerate(rules) if rule.matches(p)) for p in ALL]
    assert set(first) == set(range(len(rules)))


@pytest.mark.parametrize(
    ("places", "status", "changed"),
    [
        ((INSIDE, INSIDE, INSIDE), "pass", Changed.NOTHING),
        ((INSIDE, WORSE, WORSE), "fail", Changed.RECIPE),
        ((INSIDE, WORSE, INSIDE), "fail", Changed.RECIPE),
        ((INSIDE, BETTER, BETTER), "improved", Changed.RECIPE),
        ((INSIDE, TOO_GOOD, TOO_GOOD), "fail", Changed.RECIPE),
        ((INSIDE, UNDECIDED, UNDECIDED), "inconclusive", Changed.UNKNOWN),
        ((WORSE, INSIDE, WORSE), "drift", Changed.FRAMEWORK),
        ((WORSE, WORSE, INSIDE), "drift", Changed.FRAMEWORK),
        ((WORSE, WORSE, WORSE), "fail", Changed.BOTH),
        ((WORSE, UNDECIDED, WORSE), "fail", Changed.FRAMEWORK),
        ((WORSE, INSIDE, INSIDE), "pass", Changed.FRAMEWORK),
        ((WORSE,), "drift", Changed.FRAMEWORK),
        ((UNDECIDED,), "inconclusive", Changed.NOTHING),
        ((INSIDE,), "pass", Changed.NOTHING),
        ((WORSE, INSIDE), "drift", Changed.FRAMEWORK),
        ((INSIDE, TOO_GOOD), "fail", Changed.RECIPE),
        ((INSIDE, BETTER), "improved", Changed.RECIPE),
        ((INSIDE, UNDECIDED), "inconclusive", Changed.UNKNOWN),
    ],
)
def test_places_give_a_status_and_who_changed(places, status, changed):
    assert both(*places) == (status, changed)


def test_a_window_outside_blames_the_recipe_and_excuses_nothing():
    assert both(INSIDE, INSIDE, INSIDE, windows=True) == ("pass", Changed.RECIPE)
    assert both(WORSE, INSIDE, WORSE, windows=True) == ("fail", Changed.BOTH)


@pytest.mark.parametrize("places", ALL)
def test_a_worse_recipe_is_never_green(places):
    status = decide.status_of(places)
    if WORSE in (places.recipe, places.total) or TOO_GOOD in (places.total,):
        assert status in ("fail", "drift", "inconclusive")
    if status == "drift":
        assert places.framework == WORSE


@pytest.mark.parametrize(
    ("low", "high", "better", "place"),
    [
        (-0.9, 0.9, None, INSIDE),
        (-0.9, 1.1, None, UNDECIDED),
        (1.1, 1.2, None, WORSE),
        (-1.2, -1.1, None, WORSE),
        (1.1, 1.2, "above", BETTER),
        (3.1, 3.2, "above", TOO_GOOD),
        (2.9, 3.2, "above", BETTER),
        (-1.2, -1.1, "below", BETTER),
        (-3.2, -3.1, "below", TOO_GOOD),
        (3.1, 3.2, "below", WORSE),
        (float("nan"), float("nan"), None, UNDECIDED),
    ],
)
def test_an_interval_has_a_place(low, high, better, place):
    assert Tolerance(1.0, better).place(Interval((low + high) / 2, low, high, 3, 0.9)) == place


@pytest.mark.parametrize("rules", [STATUS, CHANGED], ids=["status", "changed"])
def test_the_documents_print_the_tables(rules):
    assert decide.markdown(rules) in (Path(__file__).parents[1] / "docs" / "theory.md").read_text()
