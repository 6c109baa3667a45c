"""The queue from which the workers of pytest-xdist take tests, with made-up workers and a made-up clock."""

from __future__ import annotations

import heapq
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.gate.queue import LongestFirst
from hypothesis import given
from hypothesis import strategies as st


class Worker:
    """It runs the tests that it is given, one after the other, and begins none before it knows the next one or that there is none."""

    def __init__(self) -> None:
        self.tests: list[int] = []
        self.shutting_down, self.running = False, False
        self.stolen: list[int] = []
        self.gateway = SimpleNamespace(id="gw")

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.tests += indices

    def send_steal(self, indices: list[int]) -> None:
        self.stolen = list(indices)

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def ready(self) -> bool:
        return not self.running and (len(self.tests) > 1 or (self.shutting_down and len(self.tests) == 1))


def session(names: list[str], workers: int, ours: bool = True) -> tuple[LongestFirst, list[Worker]]:
    config: Any = SimpleNamespace(
        getvalue=lambda name: [f"{workers}*popen"], option=SimpleNamespace(tx=[f"{workers}*popen"]), hook=None
    )
    queue = LongestFirst(config, None, lambda: ours)
    made = [Worker() for _ in range(workers)]
    for worker in made:
        queue.add_node(worker)
        queue.add_node_collection(worker, names)
    queue.schedule()
    return queue, made


def play(seconds: list[float], workers: int, dies: int | None = None) -> tuple[float, list[int]]:
    """Run tests of these seconds. Return when the last one ends, and the tests in the order in which they began. Worker 0 dies when it
    begins test ``dies``, and the test is lost."""
    queue, made = session([f"a.py::test[{i}]" for i in range(len(seconds))], workers)
    ends: list[tuple[float, int]] = []
    now, order = 0.0, []
    while True:
        for i, worker in enumerate(made):
            if worker.ready:
                order.append(worker.tests[0])
                worker.running = True
                if worker.tests[0] == dies:
                    made[i] = Worker()  # never ready: nobody gives it a test
                    queue.remove_node(worker)
                    return play_on(queue, made, order)
                heapq.heappush(ends, (now + seconds[worker.tests[0]], i))
        if not ends:
            break
        now, i = heapq.heappop(ends)
        made[i].running = False
        queue.mark_test_complete(made[i], made[i].tests.pop(0))
    assert queue.tests_finished and not queue.has_pending
    return now, order


def play_on(queue: LongestFirst, made: list[Worker], order: list[int]) -> tuple[float, list[int]]:
    """Run the others to their end, without a clock."""
    while True:
        worker = next((w for w in made if w.tests and (w.running or w.ready)), None)
        if worker is None:
            return 0.0, order
        if not worker.running:
            order.append(worker.tests[0])
        worker.running = False
        queue.mark_test_complete(worker, worker.tests.pop(0))


SECONDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=60).map(lambda found: sorted(found, reverse=True))


@given(SECONDS, st.integers(1, 8))
def test_every_test_runs_once_and_the_longest_begin_first(seconds, workers):
    _, order = play(seconds, workers)
    assert sorted(order) == list(range(len(seconds)))
    first = min(workers, len(seconds))
    assert set(order[:first]) == set(range(first))


@given(SECONDS, st.integers(1, 8))
def test_no_worker_ends_long_after_the_mean(seconds, workers):
    """Graham's bound for the longest first is the mean and one test more. What is held behind another test costs one more."""
    end, _ = play(seconds, workers)
    assert end <= sum(seconds) / workers + 2 * seconds[0] + 1e-6


GATE = [
    137.0,
    101,
    78,
    78,
    77,
    70,
    69,
    68,
    64,
    *[50.0] * 6,
    *[35.0] * 8,
    *[18.0] * 16,
    *[9.0] * 40,
    *[2.5] * 80,
    *[0.0] * 180,
]
"""Seconds as in a gate of 16 workers: a few long trainings, many short checks, and tests that are skipped."""


def test_the_workers_of_a_gate_end_together():
    end, _ = play(GATE, 16)
    assert end <= 1.03 * max(GATE[0], sum(GATE) / 16)


def test_what_a_dead_worker_held_runs_elsewhere():
    _, order = play([9.0, 8, 7, 6, 5, 4, 3, 2, 1, 1], 2, dies=0)
    assert sorted(order) == list(range(10)), "test 0 is lost, and began"


def test_a_session_without_cells_keeps_the_order_and_the_stealing_of_xdist():
    _, (first, second) = session([f"test_{i}" for i in range(10)], 2, ours=False)
    assert (first.tests, second.tests) == ([0, 1, 2, 3, 4], [5, 6, 7, 8, 9])


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_tests_are_spread_over_all_workers(count):
    _, made = session([f"test_{i}" for i in range(count)], 3)
    assert [w.tests for w in made] == [[0], [1] * (count > 1), ([2] * (count > 2)) + [3] * (count > 3)]
    assert [w.shutting_down for w in made] == [True, True, count < 4], "nobody waits for more"
