"""The last validation loss and the gradient norm of two environments, next to the training loss."""

from __future__ import annotations

import pytest
from fp8parity.judging.compare.change import Shift
from fp8parity.judging.compare.loss import meaning
from fp8parity.judging.quantities import NORM, VALIDATION


def shift(mean: float, size: str, effect: str) -> Shift:
    return Shift(mean=mean, low=mean, high=mean, n=3, margin=0.01, size=size, effect=effect, text="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "given", "values", "size", "effect"),
    [
        ("validation loss", ("moved", "regression"), (0.02, 0.02), "moved", "regression"),
        ("validation loss", ("unknown", "unknown"), (0.0, 0.02), "noise", "none"),
        ("validation loss", ("noise", "none"), (-0.029, 0.031), "moved", "regression"),
        ("validation loss", ("noise", "none"), (-0.031, 0.029), "moved", "gain"),
        ("gradient norm", ("moved", "regression"), (0.02, 0.02), "moved", "unknown"),
        ("gradient norm", ("moved", "gain"), (-0.02, -0.02), "moved", "unknown"),
        ("gradient norm", ("noise", "none"), (-0.9, 0.9), "noise", "none"),
    ],
)
def test_a_shift_has_the_meaning_of_its_quantity(name, given, values, size, effect):
    sets = next(q.sets for q in (VALIDATION, NORM) if q.sets.name == name)
    found, notes = meaning(sets, shift(0.0, *given), [0, 1], values)
    assert (found.size, found.effect) == (size, effect)
    assert bool(notes) == (given[0] == "noise" and size == "moved")
