"""Choosing configurations of Inductor's kernels, and barriers in their sources, on Inductor's own autotuner."""

from __future__ import annotations

import os

import pytest
import torch
from autotuners import run, three
from fp8parity.training.compilation import Configurations, barriers, with_barriers
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.codecache import CodeCacheFuture
from torch._inductor.runtime.triton_heuristics import CachingAutotuner


@pytest.fixture
def kernels():
    return three()


def test_each_configuration_can_be_chosen(kernels):
    with Configurations() as chosen:
        assert (chosen.width, chosen.tuned) == (0, [])
        assert run(kernels) == run(kernels) == ["X1", "X1", "X1"]
        assert (chosen.width, chosen.tuned) == (3, [kernels[0], kernels[2]])
        chosen.choose(1)
        assert run(kernels) == ["X2", "X1", "X2"]
        chosen.choose(2)
        assert run(kernels) == run(kernels) == ["X4", "X1", "X1"]
        chosen.choose(2, only=kernels[0], rest=1)
        assert run(kernels) == ["X4", "X1", "X2"]
        chosen.choose(1, only=kernels[2])
        assert run(kernels) == ["X1", "X1", "X2"]
        assert chosen.describe(kernels[0], 2) == "quantize in X4"


def test_the_region_is_isolated(kernels, monkeypatch):
    """Code compiled before, caches on disk and in the process, settings."""
    resets: list[int] = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(len(resets)))
    before, real = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), CachingAutotuner.run
    CompiledTritonKernels._cache["tuned"] = CodeCacheFuture()

    def inside():
        with Configurations():
            assert CompiledTritonKernels._cache == {}
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] not in (before, "")
            assert (config.coordinate_descent_tuning, config.autotune_remote_cache) == (False, False)
            CompiledTritonKernels._cache["chosen"] = CodeCacheFuture()
            raise RuntimeError("in the block")

    with config.patch(coordinate_descent_tuning=True):
        with pytest.raises(RuntimeError, match="in the block"):
            inside()
        assert config.coordinate_descent_tuning
    assert resets == [0, 1]
    assert CompiledTritonKernels._cache == {}
    assert (os.environ.get("TORCHINDUCTOR_CACHE_DIR"), CachingAutotuner.run) == (before, real)


SOURCE = """\
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1), r0_mask)
        tl.store(out_ptr1 + (r0_1), tmp0, r0_mask)
    tmp1 = tl.load(in_ptr1 + (x0), None)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp2 = tl.load(out_ptr1 + (r0_1), r0_mask)
"""


def test_a_barrier_is_before_loads_of_stored_pointers_only():
    lines = SOURCE.split("\n")
    assert with_barriers(SOURCE).split("\n") == [*lines[:5], "        tl.debug_barrier()", *lines[5:]]
    unread = "\n".join(lines[:5])
    assert with_barriers(unread) == unread
    second = SOURCE.replace("tl.load(out_ptr1", "tl.load(in_ptr1 + (r0_1)) + tl.load(out_ptr1")
    assert with_barriers(second).count("tl.debug_barrier()") == 1


def test_barriers_apply_inside_the_region_only(monkeypatch):
    monkeypatch.setattr(
        AsyncCompile, "triton", lambda self, name, source, device_str="cuda": (name, source, device_str)
    )
    with barriers() as changed:
        assert AsyncCompile.triton(AsyncCompile(), "k", SOURCE, device_str="xpu") == ("k", with_barriers(SOURCE), "xpu")
        assert AsyncCompile.triton(AsyncCompile(), "other", "pass\n") == ("other", "pass\n", "cuda")
    assert changed == ["k"]
    assert AsyncCompile.triton(AsyncCompile(), "k", SOURCE) == ("k", SOURCE, "cuda")
