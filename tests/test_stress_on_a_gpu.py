"""The stresses on a GPU: free memory is filled, and a planted read or race is red."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from fp8parity.checks import Check, Result, RunSpec, stress, stresses
from fp8parity.checks.dispatch import launched
from fp8parity.checks.protocol import numbers_of
from torch import Tensor

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: its memory and streams are not there")
GPU = torch.device("cuda:0")
MIB, SHORT, CYCLES = 2**20, 2**22, 1.8e9
"""Bytes, numbers whose addition is short, and cycles of a Hopper GPU in a second."""
MEMORY = {"filled memory", "memory of NaN", "memory of large values"}


def unwritten() -> Tensor:
    return torch.empty(MIB, device=GPU)[:256].view(16, 16)


def reads(x: Tensor) -> Tensor:
    return x + unwritten()


def vendor(x: Tensor) -> Tensor:
    """Copy memory as a vendor's library does, which torch does not see."""
    y, stream = x + 0, torch.cuda.current_stream().cuda_stream
    places = ctypes.c_void_p(y.data_ptr()), ctypes.c_void_p(unwritten().data_ptr())
    copy = ctypes.CDLL(f"libcudart.so.{(torch.version.cuda or '').partition('.')[0]}").cudaMemcpyAsync
    assert copy(*places, ctypes.c_size_t(64), 3, ctypes.c_void_p(stream)) == 0
    return y.exp()


def additions(x: Tensor) -> None:
    """Many short kernels: each waits for the kernel of another stream that is running."""
    for _ in range(32):
        x.add_(1)


def race(x: Tensor, seconds: float) -> Tensor:
    """Read what another stream writes, after half as long again as that takes on a GPU that does nothing else."""
    written = torch.zeros(SHORT, device=GPU)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        additions(written)
    torch.cuda._sleep(int(1.5 * seconds * CYCLES))
    y = x + written[-256:].view(16, 16)
    torch.cuda.synchronize()
    return y


def of_additions() -> float:
    """The seconds of ``additions``, the second time."""
    x = torch.zeros(SHORT, device=GPU)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        begin.record()
        additions(x)
        end.record()
        torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000


def measure(plant: Callable[[Tensor], Tensor], spec: RunSpec) -> Result:
    y = plant(torch.ones(16, 16, device=GPU))
    return numbers_of("fprop gain", {"linear": float(y.double().norm())}), []


def stressed(session, plant: Callable[[Tensor], Tensor]) -> tuple[set[str], list[str]]:
    spec = replace(session.subject("te-current"), device=GPU)
    values, notes = stress.stressed(Check("gemm", partial(measure, plant))).measure(spec)
    return {m.where for m in values if m.metric == stress.METRIC and m.value}, notes


@pytest.mark.parametrize("size", [4096, 3 * MIB // 2, 4 * MIB, 30 * MIB])
def test_free_memory_between_tensors_is_filled(size):
    held = [torch.zeros(size, dtype=torch.uint8, device=GPU) for _ in range(32)]
    del held[1::2]
    with stresses.poisoned("gemm", GPU, byte=stresses.LARGE):
        free = [torch.empty(size, dtype=torch.uint8, device=GPU) for _ in held]
        assert all(bool((one == stresses.LARGE).all()) for one in free)


@pytest.mark.parametrize("plant", [reads, vendor])
def test_read_of_unwritten_memory_is_red(plant, session):
    torch.zeros(16 * MIB, device=GPU)  # so that the first measurement finds zeros
    assert stressed(session, plant)[0] >= MEMORY


def test_race_between_streams_is_red_beside_a_competing_one(session):
    red, _ = stressed(session, partial(race, seconds=of_additions()))
    assert "a competing stream" in red and "a repeat" not in red


def test_nothing_is_red_without_a_fault(session):
    assert stressed(session, torch.exp) == (set(), [])


def test_kernels_of_the_competing_stream_are_left_out():
    x = torch.ones(MIB, device=GPU)
    assert [launched(x.frac_), len(launched(x.exp_))] == [[], 1]
