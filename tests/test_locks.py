"""Who may use a GPU: locks between real processes, and which GPU an xdist worker takes."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from fp8parity import checks
from fp8parity.training import locks
from fp8parity.training.hardware import Hardware, device_of
from fp8parity.training.locks import GPU, Use
from fp8parity.workload.presets import presets
from narrowed import some
from own_models import own

ALONE = ""
HOLD = """
import sys
from pathlib import Path
from fp8parity.training.locks import GPU, Use, held
with held(Path(sys.argv[1]), GPU("gpu-0", 80.0), Use(float(sys.argv[2] or 0), alone=not sys.argv[2])):
    print("held", flush=True)
    sys.stdin.readline()
"""


class Holder:
    """A process that takes so much of a GPU of 80 GB, or all of it alone (""), and keeps it until told to let go."""

    def __init__(self, folder: Path, gigabytes: str) -> None:
        command = [sys.executable, "-c", HOLD, str(folder), gigabytes]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "fixtures")}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def holds(self, within: float) -> bool:
        out = some(self.process.stdout)
        ready, _, _ = select.select([out], [], [], within)
        return bool(ready) and out.readline() == "held\n"

    def release(self) -> None:
        self.process.communicate("\n", timeout=30)


@contextmanager
def holding(folder: Path, gigabytes: str) -> Iterator[Holder]:
    """A holder that ends with the test, whatever the test does."""
    holder = Holder(folder, gigabytes)
    try:
        yield holder
    finally:
        if holder.process.poll() is None:
            holder.process.kill()
        holder.process.communicate()


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("0", "0", False),
        ("0", ALONE, True),
        (ALONE, "0", True),
        (ALONE, ALONE, True),
        ("64", "10", False),
        ("10", "64", False),
        ("64", "20", True),
        ("20", "64", True),
        ("100", "0", True),
        ("64", ALONE, True),
        (ALONE, "64", True),
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
    with holding(tmp_path, ALONE) as one:
        assert one.holds(30)
        with locks.held(tmp_path, GPU("gpu-1", 80.0), Use(alone=True)):
            assert sorted(p.name for p in tmp_path.iterdir()) == [".gpu-0.lock", ".gpu-1.lock"]
    assert Hardware("cpu", "cpu", None).gpus() == []


def test_records_below_the_usual_folder_share_its_lock(tmp_path):
    usual, other = tmp_path / ".parity", tmp_path / "mine"
    for folder, place in ((usual, usual), (usual / "gemms", usual), (other, other), (other / "gemms", other / "gemms")):
        with locks.held(folder, GPU("gpu-0", 80.0), Use(alone=True)):
            assert list(tmp_path.rglob("*.lock")) == [place / ".gpu-0.lock"]


def test_a_killed_holder_lets_go(tmp_path):
    with holding(tmp_path, ALONE) as one, holding(tmp_path, ALONE) as two:
        ready, _, _ = select.select([some(h.process.stdout) for h in (one, two)], [], [], 30)
        first, second = (one, two) if one.process.stdout in ready else (two, one)
        assert first.holds(0)
        assert not second.holds(1)
        first.process.kill()
        assert second.holds(30)


def test_runs_that_fit_are_held_together_and_no_more(tmp_path):
    """Planted: six runs of 11.7 GB on a GPU of 80 GB. As many processes as workers once ended in "CUDA out of memory"."""
    with ExitStack() as stack:
        six = [stack.enter_context(holding(tmp_path, "13")) for _ in range(6)]
        ready = [h for h in six if h.holds(10)]
        assert len(ready) == 5
        [waiting] = [h for h in six if h not in ready]
        ready[0].release()
        assert waiting.holds(30)


def test_nothing_is_left_of_the_slots(tmp_path):
    with locks.held(tmp_path, GPU("gpu-0", 80.0), Use(40.0)):
        assert len(list(tmp_path.iterdir())) == 1 + locks.SLOTS // 2
    assert list(tmp_path.iterdir()) == []


def test_how_much_of_a_gpu_is_held():
    known = presets()
    needed = {name: locks.of_run(known[name]).memory / 2**30 for name in ("tiny", "mini", "small", "base", "1b")}
    assert needed == pytest.approx({"tiny": 0.132, "mini": 0.94, "small": 13.6, "base": 32.6, "1b": 64.7}, rel=0.03)
    assert not any(locks.of_run(preset).alone for preset in known.values())
    large = checks.get("large").use
    assert locks.of_check(known["tiny"], large) == large
    assert locks.of_check(known["1b"], locks.SHARED).memory == pytest.approx(1.25 * 16 * 1_158_776_832)
    assert locks.of_check(known["tiny"], locks.ALONE).alone


def test_a_model_of_the_users_own_is_held_by_its_parameters():
    model = own("my_models")
    assert locks.of_run(model).memory == 1.25 * 4 * 16 * model.parameters


def test_workers_take_turns_on_the_gpus():
    assert [device_of(f"gw{i}", 2) for i in range(5)] == [0, 1, 0, 1, 0]
    assert [device_of(f"gw{i}", 8) for i in (0, 7, 8, 11)] == [0, 7, 0, 3]
    assert device_of("", 4) == 0
