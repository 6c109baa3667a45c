"""Barriers in the sources of Inductor's kernels."""

from __future__ import annotations

from fp8parity_lab.barriers import barriers, with_barriers
from torch._inductor.async_compile import AsyncCompile

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
