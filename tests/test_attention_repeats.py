"""The counting of benchmarks/attention_repeats.py: a result that differs once among many is seen, and nothing else is."""

from __future__ import annotations

import itertools

import torch
from attention_repeats import counted

EXACT = {name: torch.ones(100, dtype=torch.float64) for name in ("output", "dq")}


def test_one_result_among_many_is_counted():
    calls = itertools.count()

    def attend():
        odd = next(calls) == 3
        return {name: EXACT[name] * (1.1 if odd and name == "output" else 1.01) for name in EXACT}

    seen = counted(attend, EXACT, 0.05)
    assert next(calls) == sum(seen.values()) > 4
    assert seen.pop((20.0, 40.0)) == 1
    assert list(seen) == [(40.0, 40.0)]


def test_a_process_without_time_measures_once():
    assert counted(lambda: {name: EXACT[name] * 0.99 for name in EXACT}, EXACT, 0.0) == {(40.0, 40.0): 1}
