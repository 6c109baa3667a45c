"""Print where the seconds of a gate go, as a table: ``python lab/benchmarks/gate_parts.py SET``.

The last line is the time that the same seconds of tests take in today's order.
"""

from __future__ import annotations

import heapq
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from fp8parity import planning
from fp8parity.planning import Key
from fp8parity.records import manifest
from fp8parity.records.storage import load_records
from fp8parity.workload.presets import presets


def main(path: Path) -> None:
    """Print the worker seconds of each test, and what workers do not use."""
    [made] = manifest.load([path])
    assert made.seconds
    ran = [t for t in made.selected if t.seconds and t.begun is not None]
    taken: dict[str, list[float]] = defaultdict(list)
    for test in ran:
        taken[f"`{test.test}`"].append(test.seconds or 0.0)
    whole, first = made.seconds * made.workers, min(t.begun or 0.0 for t in ran)
    parts = [(name, str(len(took)), sum(took), f"{max(took):.0f}") for name, took in taken.items()]
    parts += [("before the first test", "-", first * made.workers, f"{first:.0f}")]
    parts += [("workers without a test at the end", "-", whole - sum(seconds for _, _, seconds, _ in parts), "-")]
    print(f"{made.seconds:.0f} s, {made.workers} workers, {made.provenance.device}\n")
    print("| part | tests | worker seconds | share | longest, s |\n|---|---|---|---|---|")
    for name, count, seconds, longest in sorted(parts, key=lambda part: -part[2]):
        print(f"| {name} | {count} | {seconds:.0f} | {seconds / whole:.0%} | {longest} |")
    took = {(t.test, t.cell): t.seconds or 0.0 for t in ran}
    keys = {(r.key.test, cell): r.key for r in planning.of_session(made, load_records(path)) for cell in _ids(r.key)}
    works = [_work(keys[name], seconds) for name, seconds in took.items() if name in keys]
    order = [work.seconds for work in planning.longest_first(works)]
    print(f"\nin today's order: {first + _greedy(order, made.workers):.0f} s")


def _ids(key: Key) -> Iterator[str]:
    yield f"{key.recipe}-{key.model}-{key.execution}"
    yield f"{key.recipe}-{key.execution}"  # of a check of one linear


def _work(key: Key, seconds: float) -> planning.Work:
    known = planning.Seconds({key: seconds})
    return planning.work(key.name, key, int(key.test == planning.TRAINED), known, presets()[key.model].model.parameters)


def _greedy(seconds: Sequence[float], workers: int) -> float:
    """Return when the last worker ends if each takes the next test once it is free."""
    free = [0.0] * workers
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
