"""Who may use a GPU: locks between real processes, and which GPU an xdist worker takes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fp8parity.runner import use_of
from fp8parity.training import locks
from fp8parity.training.hardware import device_of
from fp8parity.training.locks import Use
from fp8parity.workload.models import MODELS
from narrowed import some

HOLD = """
import sys
from pathlib import Path
from fp8parity.training import locks
with locks.gpu(Path(sys.argv[1]), sys.argv[2], sys.argv[3]):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """A process that takes a GPU and keeps it until told to let go."""

    def __init__(self, folder: Path, how: str, device: str = "cuda:0") -> None:
        command = [sys.executable, "-c", HOLD, str(folder), device, how]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "fixtures")}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def holds(self, within: float) -> bool:
        out = some(self.process.stdout)
        ready, _, _ = select.select([out], [], [], within)
        return bool(ready) and out.readline() == "held\n"

    def release(self) -> None:
        self.process.communicate("\n", timeout=30)


@contextmanager
def holding(folder: Path, how: str) -> Iterator[Holder]:
    """A holder that ends with the test, whatever the test does."""
    holder = Holder(folder, how)
    try:
        yield holder
    finally:
        if holder.process.poll() is None:
            holder.process.kill()
        holder.process.communicate()


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("shared", "shared", False),
        ("shared", "alone", True),
        ("alone", "shared", True),
        ("alone", "alone", True),
        ("heavy", "shared", False),
        ("shared", "heavy", False),
        ("heavy", "heavy", True),
        ("heavy", "alone", True),
        ("alone", "heavy", True),
    ],
)
def test_who_waits_for_whom(tmp_path, first, second, waits):
    with holding(tmp_path, first) as one:
        assert one.holds(30)
        with holding(tmp_path, second) as two:
            assert two.holds(1 if waits else 30) is not waits
            one.release()
            if waits:
                assert two.holds(30)


def test_another_gpu_and_a_cpu_do_not_wait(tmp_path):
    with holding(tmp_path, "alone") as one:
        assert one.holds(30)
        with locks.gpu(tmp_path, "cuda:1", Use.ALONE), locks.gpu(tmp_path, "cpu", Use.ALONE):
            assert sorted(p.name for p in tmp_path.iterdir()) == [".cuda0.lock", ".cuda1.lock"]


def test_records_below_the_usual_folder_share_its_lock(tmp_path):
    usual, other = tmp_path / ".parity", tmp_path / "mine"
    for folder, place in ((usual, usual), (usual / "gemms", usual), (other, other), (other / "gemms", other / "gemms")):
        with locks.gpu(folder, "cuda:0", Use.ALONE):
            assert list(tmp_path.rglob("*.lock")) == [place / ".cuda0.lock"]


def test_a_killed_holder_lets_go(tmp_path):
    with holding(tmp_path, "alone") as one, holding(tmp_path, "alone") as two:
        ready, _, _ = select.select([some(h.process.stdout) for h in (one, two)], [], [], 30)
        first, second = (one, two) if one.process.stdout in ready else (two, one)
        assert first.holds(0)
        assert not second.holds(1)
        first.process.kill()
        assert second.holds(30)


def test_who_holds_a_gpu_how():
    small, large = MODELS[0], MODELS[-1]
    found = [use_of(small), use_of(small, "gemm"), use_of(small, "large"), use_of(large), use_of(large, "large")]
    assert found == ["shared", "shared", "heavy", "alone", "alone"]


def test_workers_take_turns_on_the_gpus():
    assert [device_of(f"gw{i}", 2) for i in range(5)] == [0, 1, 0, 1, 0]
    assert [device_of(f"gw{i}", 8) for i in (0, 7, 8, 11)] == [0, 7, 0, 3]
    assert device_of("", 4) == 0
