"""Barriers in the kernels that Inductor generates, against a race of Triton's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock


@contextmanager
def barriers() -> Iterator[list[str]]:
    """Add barriers to the kernels compiled in this region, and yield their names.

    Triton may use different threads for a store and a later load of the same tensor without a barrier between them
    (triton-lang/triton#10924), and Inductor generates such kernels (pytorch/pytorch#190517). Enter the region before
    any compilation, and take a whole step inside.
    """
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.triton
    changed: list[str] = []

    def triton(self: AsyncCompile, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
        safe = with_barriers(source)
        if safe != source:
            changed.append(name)
        return original(self, name, safe, *args, **kwargs)

    with mock.patch.object(AsyncCompile, "triton", triton):
        yield changed


def with_barriers(source: str) -> str:
    """Return a kernel's source with barriers before loads from stored pointers."""
    stored: set[str] = set()
    lines = []
    for line in source.split("\n"):
        if stored.intersection(re.findall(r"tl\.load\((\w+) \+", line)):
            lines.append(f"{line[: len(line) - len(line.lstrip())]}tl.debug_barrier()")
        stored.update(re.findall(r"tl\.store\((\w+) \+", line))
        lines.append(line)
    return "\n".join(lines)
