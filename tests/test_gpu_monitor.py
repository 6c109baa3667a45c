"""The monitor of a timed GPU and its effect on the verdict. NVML is made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from fp8parity.judging import speed
from fp8parity.judging.references import pooling
from fp8parity.records.times import Watch
from fp8parity.timing import monitor as gpu_monitor
from timings import ROW, THRESHOLDS, made


class FakeNvml(SimpleNamespace):
    """NVML of one GPU; ``used``, ``reasons`` and ``clocks`` are consumed a sample each. It tells no energy."""

    def __init__(self, used: list[int], reasons: list[int], clocks: list[int]) -> None:
        busy, left, speeds = iter(used), iter(reasons), iter(clocks)
        self.NVMLError_NotSupported = type("NVMLError_NotSupported", (Exception,), {})

        def energy(handle: object) -> int:
            raise self.NVMLError_NotSupported

        super().__init__(
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda name: name,
            nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=next(busy)),
            nvmlDeviceGetClockInfo=lambda handle, kind: next(speeds),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: next(left),
            nvmlDeviceGetTotalEnergyConsumption=energy,
        )


def watched(monkeypatch, used=(0, 0), reasons=(0, 0, 0), clocks=(1980, 1980, 1980)) -> Watch | None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(list(used), list(reasons), list(clocks)))
    monkeypatch.setattr(gpu_monitor, "SETTLE", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(uuid="x"))
    monitor = gpu_monitor.GPUMonitor(torch.device("cuda:0"))
    for _ in reasons:
        monitor.sample()
    return monitor.result()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({}, "pass", "inside"),
        ({"used": (63, 0)}, "inconclusive", "63% busy before"),
        ({"used": (0, 63)}, "inconclusive", "63% busy after"),
        ({"reasons": (0, 0x40, 0), "clocks": (1980, 1200, 1980)}, "inconclusive", "hardware thermal"),
        ({"reasons": (0x20, 0x8, 0x80)}, "inconclusive", "hardware slowdown, power brake, software thermal"),
        ({"reasons": (0x1, 0x2, 0x4)}, "pass", "inside"),  # idle, application clocks, power cap
    ],
)
def test_a_disturbed_gpu_makes_a_verdict_inconclusive(monkeypatch, options, status, words):
    golden = pooling.updated(None, [made()])
    found = speed.judge(made(watch=watched(monkeypatch, **options)), golden, ROW, THRESHOLDS)
    assert found.status == status and words in found.headline


def test_the_watch_keeps_every_clock(monkeypatch):
    """And how often the power limit lowered it."""
    assert watched(monkeypatch, (3, 4), (0, 0x40, 0x4, 0x44), (1980, 1200, 1500, 1600)) == Watch(
        busy_before=3,
        busy_after=4,
        sm_clocks=[1980, 1200, 1500, 1600],
        throttled=["hardware thermal"],
        power_capped=0.5,
    )


class Counter:
    """A counter of energy that moves every 0.1 s, and its clock: one look at the counter takes 1 ms.

    The GPU draws 100 W for 0.25 s, then 700 W: the first readings hold what ran before.
    Only the thread that looks at the counter moves the clock, so the threads' order does not matter.
    """

    def __init__(self) -> None:
        self.looks = 0

    def perf_counter(self) -> float:
        return self.looks * 0.001

    def energy(self) -> float:
        self.looks += 1
        read = self.looks // 100 * 0.1
        return 100 * read if read < 0.25 else 25 + 700 * (read - 0.25)


def test_the_power_is_that_between_changes_of_the_counter(monkeypatch):
    """A step of 0.3 s spans several moves; the mean over whole moves does not depend on where the work began."""
    counter = Counter()
    monkeypatch.setattr(gpu_monitor.time, "perf_counter", counter.perf_counter)
    monkeypatch.setattr(gpu_monitor.time, "sleep", lambda seconds: None)
    monitor = gpu_monitor.GPUMonitor(torch.device("cpu"))
    monkeypatch.setattr(monitor, "_energy", counter.energy)
    monitor.measure_power(lambda: None)
    assert monitor.watts == pytest.approx([700], rel=1e-9)


class Driver:
    """A driver that samples the utilisation every 0.2 s, and a clock that only sleep moves. This process worked until it stops at 100.07 s;
    ``others`` are the loads of other processes by the end of their samples."""

    def __init__(self, others: dict[float, int], keeps: bool = True) -> None:
        self.now, self.others, self.keeps = 100.07, others, keeps

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def samples(self, handle: object, kind: int, after: int) -> tuple[int, list[SimpleNamespace]]:
        ends = [n * 200_000 for n in range(490, 520) if after < n * 200_000 <= self.now * 1e6]
        if not self.keeps or not ends:
            raise FakeError
        busy = {end: 99 if end <= 100_200_000 else self.others.get(end / 1e6, 0) for end in ends}
        return 1, [
            SimpleNamespace(timeStamp=end, sampleValue=SimpleNamespace(uiVal=busy[end])) for end in reversed(ends)
        ]

    def monitor(self, monkeypatch) -> gpu_monitor.GPUMonitor:
        nvml = FakeNvml([7, 7], [], [])
        nvml.NVMLError, nvml.NVML_GPU_UTILIZATION_SAMPLES, nvml.nvmlDeviceGetSamples = FakeError, 1, self.samples
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: None)
        monkeypatch.setattr(gpu_monitor.time, "time", lambda: self.now)
        monkeypatch.setattr(gpu_monitor.time, "sleep", self.sleep)
        monitor = gpu_monitor.GPUMonitor(torch.device("cpu"))
        monitor.handle = "gpu"
        return monitor


class FakeError(Exception):
    """NVML's error for no new sample, and for a driver that keeps none."""


@pytest.mark.parametrize(
    ("others", "found"), [({}, 0), ({100.4: 40}, 40), ({100.6: 60}, 60), ({100.2: 80, 100.8: 90}, 0)]
)
def test_two_complete_samples_show_the_load_of_others(monkeypatch, others, found):
    """The sample that ends at 100.2 s holds work of this process. Those that end at 100.4 and 100.6 s begin after it."""
    driver = Driver(others)
    monitor = driver.monitor(monkeypatch)
    assert monitor._utilization() == found
    assert 100.6 <= driver.now < 100.65


def test_without_nvml_there_is_no_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = gpu_monitor.GPUMonitor(torch.device("cuda:0"))
    monitor.sample()
    assert monitor.result() is None
