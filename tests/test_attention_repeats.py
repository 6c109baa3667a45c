"""The counting of benchmarks/attention_repeats.py: a result that differs once among many is seen, and nothing else is."""

from __future__ import annotations

import itertools

import torch
from attention_repeats import counted, summary
from fp8parity.checks.attention import TENSORS

EXACT = {name: torch.ones(100, dtype=torch.float64) for name in TENSORS}
USUAL, ODD = "40.000 40.000 40.000 40.000", "40.000 40.000 20.000 40.000"


def attending(odd_dk: float):
    """An attention whose fourth result has another dk."""
    calls = itertools.count()
    return lambda: {
        name: EXACT[name] * (odd_dk if n == 3 and name == "dk" else 1.01) for n in [next(calls)] for name in EXACT
    }


def seconds():
    """A clock that goes on by one second each time that somebody looks."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def test_one_result_among_many_is_counted():
    seen = counted(attending(1.1), EXACT, 10.0, seconds())
    assert seen == {USUAL: 9, ODD: 1}
    assert summary(seen) == f"1 of 10 repeats differ: 9 x {USUAL}, 1 x {ODD}"


def test_a_nan_is_one_result_however_often_it_comes():
    seen = counted(lambda: {name: EXACT[name] * torch.nan for name in EXACT}, EXACT, 5.0, seconds())
    assert seen == {"nan nan nan nan": 5}


def test_a_process_without_time_measures_once():
    assert counted(attending(1.01), EXACT, 0.0, seconds()) == {USUAL: 1}
