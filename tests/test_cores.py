"""How the workers of a session share the cores: who compiles in how many processes, and who sleeps while it waits for the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from fp8parity.gate import cores
from fp8parity.training import variables
from processes import FIXTURES


@pytest.fixture(autouse=True)
def sixteen(monkeypatch):
    """The cores are those that the process may use: a scheduler gave it a part of a machine of 512."""
    monkeypatch.setattr(os, "cpu_count", lambda: 512)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)


@pytest.mark.parametrize(
    ("count", "workers", "cpu", "gpu"),
    [
        (16, 1, "16", "16"),
        (16, 4, "4", "4"),
        (16, 8, "1", "3"),
        (16, 32, "1", "3"),
        (128, 2, "32", "32"),
        (128, 8, "16", "16"),
    ],
)
def test_workers_share_the_cores_for_compilation(monkeypatch, count, workers, cpu, gpu):
    """torch itself starts 32 processes at most."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))
    for driver, threads in ((None, cpu), (Driver(status=3), cpu), (Driver(), gpu)):
        monkeypatch.setattr(cores, "_driver", lambda driver=driver: driver)
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
        cores.share(workers)
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == threads
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    cores.share(workers)
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "7"


def test_how_many_processes_compile_is_not_recorded():
    """Otherwise the records of a session with workers would be those of another machine."""
    assert variables.recorded({"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}) == {
        "TORCHINDUCTOR_MAX_AUTOTUNE": "1"
    }


class Driver:
    """A CUDA driver with two GPUs. It returns ``status`` from each call."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.flags: dict[int, int] = {}

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return self.status

    def cuDevicePrimaryCtxSetFlags(self, device: int, flags: int) -> int:
        self.flags[device] = flags
        return self.status


@pytest.mark.parametrize(("workers", "flags"), [(1, {}), (4, {}), (5, {0: 4, 1: 4}), (24, {0: 4, 1: 4})])
def test_workers_with_few_cores_sleep_while_they_wait(monkeypatch, workers, flags):
    """With four cores for each worker, nobody needs the core of one that waits, and it sees the end of its work sooner."""
    driver = Driver()
    monkeypatch.setattr(cores, "_driver", lambda: driver)
    cores.share(workers)
    assert driver.flags == flags


@pytest.mark.parametrize("driver", [None, Driver(status=3)], ids=["none", "not initialized"])
def test_a_session_without_a_driver_goes_on(monkeypatch, driver):
    monkeypatch.setattr(cores, "_driver", lambda: driver)
    cores.share(17)
    assert driver is None or driver.flags == {}


def test_a_machine_without_the_library_has_no_driver(monkeypatch):
    monkeypatch.setattr(cores, "DRIVER", "libcuda-that-nobody-has.so")
    assert cores._driver() is None


WAITING = """
import sys, time
from fp8parity.gate import cores
if sys.argv[1] == "sleeps":
    driver = cores._driver()
    cores.sleep_while_waiting(driver, cores._count(driver))
import torch
torch.cuda.synchronize()
begun, used = time.perf_counter(), time.process_time()
torch.cuda._sleep(2_000_000_000)
torch.cuda.synchronize()
print((time.process_time() - used) / (time.perf_counter() - begun))
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: nothing waits for one")
@pytest.mark.parametrize(("how", "low", "high"), [("spins", 0.8, 1.2), ("sleeps", 0.0, 0.2)])
def test_a_worker_that_waits_for_the_gpu_leaves_its_core(how, low, high):
    """The share of a core that a process uses while the GPU works for a second."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([FIXTURES, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", WAITING, how], env=environment, capture_output=True, text=True, check=True)
    assert low <= float(done.stdout) <= high
