"""Who may use a GPU: locks between real processes, and how much memory a run holds."""

from __future__ import annotations

import re
import select
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity import checks
from fp8parity.training import locks
from fp8parity.training.hardware import Hardware
from fp8parity.training.locks import GPU, Use
from fp8parity.workload.presets import presets
from lock_holders import Holder, holding
from own_models import own

ALONE = ""
MEMORY = "fp8parity: waiting for memory of gpu-0, which other runs hold\n"


@pytest.mark.parametrize(
    ("first", "second", "waits"),
    [
        ("0", "0", False),
        ("0", ALONE, True),
        (ALONE, "0", True),
        (ALONE, ALONE, True),
        ("58", "10", False),
        ("10", "58", False),
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
            assert (two.waits(30) and not two.holds(0)) if waits else two.holds(30)
            one.release()
            if waits:
                assert two.holds(30)


@pytest.mark.parametrize("use", [Use(0.5), Use(40.0), Use(alone=True)], ids=["small", "large", "alone"])
def test_the_first_run_of_a_gate_has_no_folder_yet(tmp_path, use):
    """Seen on an H100: four small runs began before any large one had made the folder of the records, and were errors."""
    with locks.held(tmp_path / "records", GPU("gpu-0", 80.0), use):
        assert list((tmp_path / "records").glob("*.lock"))


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
        ready, _, _ = select.select([h.output for h in (one, two)], [], [], 30)
        first, second = (one, two) if one.output in ready else (two, one)
        assert first.holds(0)
        assert second.waits(30)
        assert not second.holds(0)
        first.process.kill()
        assert second.holds(30)


def test_runs_that_fit_are_held_together_and_no_more(tmp_path):
    """Planted: six runs of 13 GB on a GPU of 80 GB. As many processes as workers once ended in "CUDA out of memory"."""
    with ExitStack() as stack:
        six = [stack.enter_context(holding(tmp_path, "13")) for _ in range(6)]
        spoken = set[Holder]()
        while len(spoken) < 6:  # each of them either holds the GPU or says that it waits
            streams = {s: h for h in six if h not in spoken for s in (h.output, h.error)}
            found, _, _ = select.select(list(streams), [], [], 60)
            assert found, "a holder says nothing"
            spoken |= {streams[s] for s in found}
        ready = [h for h in six if h.holds(0)]
        assert len(ready) == 5
        [waiting] = [h for h in six if h not in ready]
        assert waiting.waits(0) == MEMORY
        ready[0].release()
        assert waiting.holds(30)


@pytest.mark.parametrize("first", ["0", "20"])
def test_a_timed_run_is_not_overtaken_by_small_runs(tmp_path, first):
    """Small runs that came later once shared the GPU with the first one, so a timed run waited until no small run was left."""
    with holding(tmp_path, first) as one:
        assert one.holds(30)
        with holding(tmp_path, ALONE) as timed:
            assert re.fullmatch(
                rf"fp8parity: waiting for {tmp_path}/\.gpu-0\.lock, held by process .*\n", timed.waits(30)
            )
            with holding(tmp_path, "0") as later:
                assert later.queues(30) and not later.holds(0)
                assert one.release() == ""
                assert timed.holds(30)
                assert not later.holds(0)
                timed.release()
                assert later.holds(30)


@pytest.mark.parametrize(("first", "most", "next_one"), [("40", "58", "10"), ("20", "76", "0")])
def test_a_run_that_needs_most_of_the_memory_is_not_overtaken(tmp_path, first, most, next_one):
    """Not even by a small run, if it needs the slots of small runs, too."""
    with holding(tmp_path, first) as one:
        assert one.holds(30)
        with holding(tmp_path, most) as large:
            assert large.waits(30) == MEMORY
            with holding(tmp_path, next_one) as later:
                assert later.queues(30) and not later.holds(0)
                one.release()
                assert large.holds(30)
                assert later.holds(30)
                assert later.release() == ""  # who waits behind another one says nothing
                assert large.release() == ""


def test_a_small_run_does_not_wait_behind_one_that_waits_for_memory(tmp_path):
    """Planted: the queue of a gate on an H100. Runs of small wait for memory, and those of tiny came behind them."""
    with holding(tmp_path, "60") as one:
        assert one.holds(30)
        with holding(tmp_path, "20") as large:
            assert large.waits(30) == MEMORY
            with holding(tmp_path, "1") as small:
                assert small.holds(30)
                one.release()
                assert large.holds(30)  # and the small run does not keep it from its memory


def test_small_runs_beyond_the_lane_take_what_is_free(tmp_path):
    gpu = GPU("gpu-0", 80.0)
    with ExitStack() as stack:
        for _ in range(locks.LANE + 1):
            stack.enter_context(locks.held(tmp_path, gpu, Use(0.5)))
        taken = [p for p in locks._slots(tmp_path, gpu) if p.exists()]
        assert taken == locks._slots(tmp_path, gpu)[: locks.LANE + 1]
        with holding(tmp_path, "75") as large:
            assert large.waits(30) == MEMORY


def test_a_small_run_of_two_slots_leaves_none_behind_if_one_is_free(tmp_path):
    """The lane has one free slot, and the run needs two: it takes two beside the lane."""
    gpu = GPU("gpu-0", 80.0)
    with ExitStack() as stack:
        for _ in range(locks.LANE - 1):
            stack.enter_context(locks.held(tmp_path, gpu, Use(0.5)))
        with locks.held(tmp_path, gpu, Use(1.0)):
            assert sum(p.exists() for p in locks._slots(tmp_path, gpu)[locks.LANE :]) == locks.SMALL
        assert sum(p.exists() for p in locks._slots(tmp_path, gpu)) == locks.LANE - 1


def test_a_wait_for_memory_is_said_once_a_process(capsys):
    for name in ("gpu-7", "gpu-8", "gpu-7"):
        locks._say_once(name)
    assert capsys.readouterr().err == MEMORY.replace("gpu-0", "gpu-7") + MEMORY.replace("gpu-0", "gpu-8")


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
    assert large.memory > 40.3 * 2**30
    assert locks.of_check(known["tiny"], large) == large
    assert locks.of_check(known["1b"], locks.SHARED).memory == pytest.approx(1.25 * 4 * 16 * 1_158_776_832)
    assert (
        locks.of_check(known["small"], locks.SHARED).memory > 66 * 117_401_856
    )  # what the check gradients was measured to need
    of_modes = locks.of_check(known["small"], checks.get("modes").use).memory
    assert of_modes == locks.of_check(known["small"], locks.SHARED).memory / 2
    assert of_modes > 1.70 * 2**30  # what modes was measured to reserve
    assert locks.of_check(known["tiny"], locks.ALONE).alone
    users: Any = SimpleNamespace(model=known["small"].model)  # a user's own model, whose activations are not known
    assert locks.of_check(users, checks.get("modes").use).memory == 2 * of_modes == locks.of_run(users).memory


def test_a_model_of_the_users_own_is_held_by_its_parameters():
    model = own("my_models")
    assert locks.of_run(model).memory == 1.25 * 4 * 16 * model.parameters
