"""How long a selection takes and how much memory it needs: recorded seconds count, other cells are scaled by their operations."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from fp8parity.gate import machine
from fp8parity.gate.machine import size_of
from fp8parity.planning.estimate import Costs, Part, Planned, Size, duration, estimate
from fp8parity.planning.seconds import Key, Seconds
from fp8parity.records.cell import Cell
from fp8parity.training.hardware import Hardware
from fp8parity.workload.presets import presets
from sessions import cell

SMALL, LARGE = Size(1e9, 2**30), Size(4e9, 6 * 2**30)
CONTROL = cell("bf16", "native", "mini")
TE, AO = cell("te-current", model="mini"), cell("ao-rowwise", model="mini")


def costs(
    known: dict[Cell, float] | None = None, rate: float | None = None, checks: dict[str, float] | None = None
) -> Costs:
    return Costs({"mini": SMALL, "small": LARGE}, known or {}, lambda test, _: (checks or {}).get(test), rate)


def planned(of: Cell, runs: int = 2, test: str = "test_loss_parity", skipped: bool = False) -> Planned:
    return Planned(name=f"{test}[{of.id}]", test=test, cell=of, runs=runs, skipped=skipped)


def test_recorded_seconds_count_and_the_control_is_trained_once():
    found = estimate([planned(TE), planned(AO), planned(CONTROL)], costs({CONTROL: 10.0, TE: 30.0, AO: 50.0}), 1)
    assert found.seconds == {planned(CONTROL).name: 20.0, planned(TE).name: 60.0, planned(AO).name: 100.0}
    assert found.total == 180.0
    assert found.longest == (AO, 50.0)
    assert found.unknown == 0
    alone = estimate([planned(TE), planned(AO)], costs({CONTROL: 10.0, TE: 30.0, AO: 50.0}), 1)
    assert alone.total == 180.0


def test_workers_share_the_work_but_no_test_is_split():
    tests, known = [planned(TE), planned(AO), planned(CONTROL)], costs({CONTROL: 10.0, TE: 30.0, AO: 50.0})
    assert estimate(tests, known, 2).total == 100.0
    assert estimate(tests, known, 8).total == 100.0
    assert estimate(tests, known, 8).workers == 3


def test_an_unknown_size_is_scaled_from_a_known_one_by_its_operations():
    found = costs({CONTROL: 10.0, TE: 30.0})
    assert found.run(cell("te-current", model="small")) == 120.0
    assert found.run(cell("bf16", "native", "small")) == 40.0
    assert found.run(cell("te-block", model="mini")) == 30.0
    assert found.run(cell("te-block", model="unknown")) is None


def test_without_any_record_the_speed_of_the_device_counts():
    found = costs(rate=1e8)
    assert found.run(CONTROL) == 10.0
    assert found.run(cell("te-current", "native", "mini")) == 10.0
    assert found.run(TE) == 30.0
    assert costs().run(TE) is None
    narrow = Costs({"mini": Size(1e9, 0.0, 1e8)}, {}, lambda test, _: None, 1e9)
    assert narrow.run(CONTROL) == pytest.approx(1 + 24)


def test_a_step_of_micro_takes_what_a_xeon_took():
    """44 ms with products of 60 GFLOP/s; 13.3 s a run (golden/records/micro-xeon.zip)."""
    found = Costs({"mini": size_of(presets()["micro"])}, {}, lambda test, _: None, 60e9)
    assert found.run(CONTROL) == pytest.approx(13.3, rel=0.1)


def test_what_is_not_known_is_said():
    found = estimate(
        [planned(CONTROL), planned(TE, 0, "test_gradients"), planned(AO, skipped=True)], costs({CONTROL: 10.0}), 1
    )
    assert (found.unknown, found.total) == (1, 20.0)
    assert found.text == "2 tests to run, about 20 s (bf16-mini-native: 10 s a run), and 1 of unknown length"
    nothing = estimate([planned(TE)], costs(), 4)
    assert nothing.text == "1 test to run; how long it takes here is not known"
    large = estimate([planned(cell("bf16", "native", "small"), 3)], costs(rate=1e5), 2)
    assert (
        large.text
        == "1 test to run, about 33.3 hours (bf16-small-native: 11.1 hours a run), 6 GiB of memory for the largest model"
    )


def test_the_rest_follows_what_finished_tests_and_first_steps_say():
    found = estimate(
        [planned(CONTROL), planned(TE), planned(AO)], known := costs({CONTROL: 10.0, TE: 30.0, AO: 50.0}), 1
    )
    names = list(found.seconds)
    assert found.left(known, {}, []) == 180.0
    assert found.left(known, {names[0]: 40.0}, []) == 320.0
    assert found.left(known, {}, [Part(names[1], TE, 15.0, 20.0)]) == pytest.approx((10 + 50) + (30 - 20))
    assert found.left(known, {}, [Part(names[1], TE, None, 20.0)]) == pytest.approx(160.0)
    assert found.left(known, dict.fromkeys(names, 1.0), []) is None
    assert found.left(known, dict.fromkeys(names[:2], 1.0), []) == pytest.approx(100 * 2 / 80)


def test_the_first_seconds_of_a_long_run_say_little():
    """A run of 300 s at its present pace, where 30 s were expected, beside a test that took what was expected."""
    found = estimate(
        [planned(CONTROL), planned(TE), planned(AO)], known := costs({CONTROL: 10.0, TE: 30.0, AO: 50.0}), 1
    )
    names = list(found.seconds)
    pace = (20 + 300 * 0.02) / (20 + 30 * 0.02)
    assert found.left(known, {names[0]: 20.0}, [Part(names[1], TE, 300.0, 6.0)]) == pytest.approx(pace * 160 - 6)


def test_a_test_that_is_late_takes_longer_yet():
    """It says that this machine is slower, and a quarter of its time is left."""
    found = estimate([planned(TE), planned(AO)], known := costs({CONTROL: 10.0, TE: 30.0, AO: 50.0}), 1)
    first, other = list(found.seconds)
    assert found.seconds == {first: 80.0, other: 100.0}
    assert found.left(known, {}, [Part(first, TE, None, 160.0)]) == pytest.approx(160 / 4 + 2 * 100)
    assert found.left(known, {}, [Part(first, TE, None, 80.0)]) == pytest.approx(80 / 4 + 100)


def test_tests_of_unknown_length_take_as_long_as_those_that_are_done():
    tests = [planned(TE, 0, f"test_{i}") for i in range(4)]
    found = estimate(tests, costs(), 2)
    assert found.left(costs(), {}, []) is None
    assert found.left(costs(), {tests[0].name: 6.0, tests[1].name: 10.0}, []) == 8.0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5300, "88 min"), (5400, "1.5 hours"), (4e5, "111.1 hours")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_sizes_are_those_of_the_models():
    """Peak memory of BF16 in golden/records/h200.zip: 52.3, 25.7 and 10.9 GiB."""
    found = {name: size_of(presets()[name]) for name in ("1b", "base", "small")}
    assert {name: size.memory / 2**30 for name, size in found.items()} == pytest.approx(
        {"1b": 52.3, "base": 25.7, "small": 10.9}, rel=0.05
    )
    big = presets()["1b"]
    assert found["1b"].operations == 6 * big.model.parameters * 60 * 64 * 256
    assert (
        size_of(dataclasses.replace(big, schedule=dataclasses.replace(big.schedule, steps=120))).operations
        == 2 * found["1b"].operations
    )


@pytest.mark.parametrize(("capability", "workers"), [((9, 0), 16), (None, 3)], ids=["a GPU", "a CPU of three cores"])
def test_workers_that_make_a_session_faster(monkeypatch, capability, workers):
    """A gate of 16 workers on one H100 was said to take as long as one worker would, which is 13 times as long as it took."""
    monkeypatch.setattr(machine.cores, "cores", lambda: 3)
    assert machine.workers(16, Hardware("h100", "cuda:0", capability)) == workers


def test_a_test_that_is_timed_waits_for_its_gpu_and_the_others_do_not():
    checks = [planned(cell(f"r{i}", model="mini"), runs=0, test="test_modes") for i in range(8)]
    timed = [planned(cell(f"r{i}", model="mini"), runs=0, test="test_block") for i in range(4)]
    known = costs(checks={"test_modes": 10.0, "test_block": 20.0})
    totals = [
        estimate([*checks, *timed], known, workers, gpus).total for workers, gpus in ((8, 1), (8, 2), (1, 1), (8, 0))
    ]
    assert totals == [8 * 10 / 8 + 80, 8 * 10 / 8 + 40, 160.0, 20.0]
    found = estimate([*checks, *timed], known, 8, 2)
    assert found.left(known, {t.name: 10.0 for t in checks}, []) == 40.0


@pytest.mark.parametrize(("workers", "gpus", "slower"), [(1, 0, 1.0), (32, 1, 1.008), (32, 4, 1.008)])
def test_recorded_seconds_are_those_beside_the_other_workers(workers, gpus, slower):
    """Of 32 workers, two have a test. The timed one is not slower."""
    rows = {
        Key("test_modes", "nano", "te-current", "emulated"): 10.0,
        Key("test_block", "nano", "te-current", "emulated"): 10.0,
    }
    context = SimpleNamespace(
        recorded=Seconds(rows), hardware=SimpleNamespace(gpu_count=gpus, device="cpu", capability=(9, 0)), models={}
    )
    of = cell("te-current", model="nano")
    tests = [planned(of, runs=0, test=test) for test in ("test_modes", "test_block")]
    found = machine.costs(tests, context, workers)  # type: ignore[arg-type]  # it reads these fields
    assert [found.checks(test, of) for test in ("test_modes", "test_block")] == [10.0 * slower, 10.0]
