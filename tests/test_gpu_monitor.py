"""What a GPU did while it was timed, and how that reaches the verdict. No GPU: NVML is made up."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from fp8parity.judging import speed, speed_goldens
from fp8parity.records.schema import Watch
from fp8parity.training import gpu_monitor
from timings import GPU, ROW, made


@pytest.fixture
def golden(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    speed_goldens.store(tmp_path, made(), ROW)
    return speed_goldens.load(tmp_path)[GPU, "base", "training-step"]


class FakeNvml(SimpleNamespace):
    """NVML of one GPU; ``used``, ``reasons``, ``clocks`` and ``energies`` (mJ, None: not supported) are consumed a sample each."""

    def __init__(self, used: list[int], reasons: list[int], clocks: list[int], energies: list[int] | None) -> None:
        busy, left, speeds, counter = iter(used), iter(reasons), iter(clocks), iter(energies or [])
        self.NVMLError_NotSupported = type("NVMLError_NotSupported", (Exception,), {})

        def energy(handle: object) -> int:
            if energies is None:
                raise self.NVMLError_NotSupported
            return next(counter)

        super().__init__(
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda name: name,
            nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=next(busy)),
            nvmlDeviceGetClockInfo=lambda handle, kind: next(speeds),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: next(left),
            nvmlDeviceGetTotalEnergyConsumption=energy,
        )


def watched(monkeypatch, used=(0, 0), reasons=(0, 0, 0), clocks=(1980, 1980, 1980), energies=None) -> Watch | None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(list(used), list(reasons), list(clocks), energies))
    monkeypatch.setattr(gpu_monitor, "SETTLE", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(uuid="x"))
    monitor = gpu_monitor.GPUMonitor(torch.device("cuda:0"))
    for _ in reasons:
        monitor.start()
        monitor.sample()
    return monitor.result()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({}, "pass", "inside"),
        ({"used": (63, 0)}, "inconclusive", "63% busy before"),
        ({"used": (0, 63)}, "inconclusive", "63% busy after"),
        ({"reasons": (0, 0x40, 0), "clocks": (1980, 1200, 1980)}, "inconclusive", "hardware thermal"),
        ({"reasons": (0, 0x8, 0x80)}, "inconclusive", "hardware slowdown, power brake"),
        ({"reasons": (0x20, 0, 0)}, "inconclusive", "software thermal"),
        ({"reasons": (0x1, 0x2, 0x4)}, "pass", "inside"),  # idle, application clocks, power cap
    ],
)
def test_what_nvml_says_reaches_the_verdict(monkeypatch, golden, options, status, words):
    found = speed.judge(made(watch=watched(monkeypatch, **options)), golden, ROW)
    assert found.status == status and words in found.headline


def test_the_watch_keeps_every_clock(monkeypatch):
    """And how often the power limit lowered it."""
    assert watched(monkeypatch, (3, 4), (0, 0x40, 0x4, 0x44), (1980, 1200, 1500, 1600)) == Watch(
        busy_before=3, busy_after=4, sm_clocks=[1980, 1200, 1500, 1600], throttled=["hardware thermal"], power_capped=0.5
    )


def test_each_block_has_its_energy(monkeypatch):
    """The counter is read before and after a block, so what lies between two blocks counts for none. An older GPU tells nothing."""
    found = watched(monkeypatch, energies=[1000, 1175, 2000, 2140, 3000, 3176])
    assert found and found.joules == pytest.approx([0.175, 0.14, 0.176])
    older = watched(monkeypatch)
    assert older and older.joules == []


def test_without_nvml_there_is_no_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monitor = gpu_monitor.GPUMonitor(torch.device("cuda:0"))
    monitor.sample()
    assert monitor.result() is None
