"""The load amid which parts of a step are timed: whose turn it is, how long turns are, and what is counted."""

from __future__ import annotations

from collections import Counter
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from fp8parity.training import load
from fp8parity.training.load import PRODUCTS, TURN_SECONDS, TURNS, Load, turns
from fp8parity.training.replays import ROUNDS


@pytest.mark.parametrize(("work", "product"), [(1e-5, 5e-3), (2.5e-3, 5e-3), (4e-2, 5e-3), (1e-3, 8e-3)])
def test_the_load_takes_two_thirds_of_the_time(work, product):
    number, loads = turns(work, product)
    assert number * work >= TURN_SECONDS * 0.8
    assert loads * product == pytest.approx(2 * number * work, abs=0.6 * product)


def test_on_a_cpu_work_is_timed_alone():
    calls, cpu = count(), Load(torch.device("cpu"))
    found = cpu.seconds(lambda: next(calls))
    assert len(found) == next(calls) == ROUNDS
    assert cpu.product is None and cpu.beside == []


def test_work_and_load_take_turns_and_each_has_its_own_seconds(monkeypatch):
    """A made-up GPU: the load takes 4 ms, and the work 1 ms, then 2 ms as soon as the clock has fallen."""
    seen, made, now = [], Load(torch.device("cpu")), [0.0]
    monkeypatch.setattr(made, "product", lambda: None)
    monkeypatch.setattr(made, "_graph", SimpleNamespace(replay="load"), raising=False)
    monkeypatch.setattr(load, "captured", lambda work: SimpleNamespace(replay=work()))
    monkeypatch.setattr(load.time, "monotonic", lambda: now[0])

    def events(replay: str, number: int) -> float:
        seconds = 4e-3 if replay == "load" else 1e-3 if now[0] < 0.1 else 2e-3
        now[0] += number * seconds
        seen.append((replay, number))
        return seconds

    monkeypatch.setattr(load, "events", events)
    assert made.seconds(lambda: "work") == pytest.approx([2e-3] * ROUNDS)
    assert made.beside == pytest.approx([4e-3 / PRODUCTS] * ROUNDS)
    probes, rest = seen[:2], seen[2:]
    assert probes == [("work", 3), ("load", 3)]
    assert rest[::2] == [("work", 2)] * (len(rest) // 2) and rest[1::2] == [("load", 1)] * (len(rest) // 2)
    assert now[0] > load.SETTLED and len(rest) > 2 * ROUNDS * TURNS
    assert Counter(name for name, _ in rest)["work"] == len(rest) // 2
