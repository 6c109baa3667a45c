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
        (16, 5, "1", "3"),
        (16, 32, "1", "3"),
        (128, 2, "32", "32"),
        (128, 8, "16", "16"),
    ],
)
def test_workers_share_the_cores_for_compilation(monkeypatch, count, workers, cpu, gpu):
    """torch itself starts 32 processes at most. A session on the CPU of a machine with a GPU compiles as one without."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))
    for driver, used, threads in (
        (None, True, cpu),
        (Driver(status=3), True, cpu),
        (Driver(), False, cpu),
        (Driver(), True, gpu),
    ):
        monkeypatch.setattr(cores, "_driver", lambda driver=driver: driver)
        monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
        cores.share(workers, gpu=used)
        assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == threads
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "7")
    cores.share(workers, gpu=True)
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


@pytest.mark.parametrize(
    ("workers", "gpu", "status", "flags"),
    [(4, True, 0, {}), (5, True, 0, {0: 4, 1: 4}), (24, True, 0, {0: 4, 1: 4}), (24, False, 0, {}), (24, True, 3, {})],
    ids=["enough cores", "too few", "far too few", "on the CPU", "no driver that starts"],
)
def test_workers_with_few_cores_sleep_while_they_wait(monkeypatch, workers, gpu, status, flags):
    """With four cores for each worker, nobody needs the core of one that waits, and it sees the end of its work sooner."""
    driver = Driver(status)
    monkeypatch.setattr(cores, "_driver", lambda: driver)
    cores.share(workers, gpu=gpu)
    assert driver.flags == flags


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
    done = subprocess.run(
        [sys.executable, "-c", WAITING, how], env=environment, capture_output=True, text=True, check=True
    )
    assert low <= float(done.stdout) <= high
