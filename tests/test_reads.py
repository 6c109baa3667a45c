"""How often a check copies a number to the host. On a GPU that other processes use, each copy waits for its turn."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fp8parity.checks import checkpoint, gradients, layers, places, state
from fp8parity.checks.protocol import RunSpec
from sessions import cell, shorten
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
WAIT = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}
"""Operations whose result the host must know."""
LINEARS = 7
"""The linears of a block."""


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for numbers: these operations, indices by a mask, and ``tolist``, which is no operation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        by_mask = op is aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += op in WAIT or by_mask
        return op(*args, **(kwargs or {}))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], int]:
    """Returns how often some work reads numbers."""
    real = torch.Tensor.tolist

    def counted(work: Callable[[], object]) -> int:
        with Reads() as mode, pytest.MonkeyPatch.context() as patch:

            def read(tensor: torch.Tensor) -> Any:
                mode.count += 1
                return real(tensor)

            patch.setattr(torch.Tensor, "tolist", read)
            work()
        return mode.count

    shorten(monkeypatch)
    monkeypatch.setattr(gradients, "TRAINING", replace(gradients.TRAINING, steps=1))
    monkeypatch.setattr(gradients, "trained_state", gradients.trained_state.__wrapped__)
    return counted


def of_depth(session: Any, depth: int) -> RunSpec:
    spec = session.spec(cell("te-current", "emulated", "micro"))
    return replace(spec, model=replace(spec.model, layers=depth))


@pytest.mark.parametrize(
    ("check", "each", "most"),
    [(gradients, 0, 60), (layers, 0, 5), (checkpoint, 0, 40), (places, 2 * LINEARS, 40)],
    ids=["gradients", "layers", "checkpoint", "places"],
)
@pytest.mark.usefixtures("eager")
def test_reads_do_not_grow_with_depth(check, each, most, session, reads):
    """``places`` reads two of each linear: whether it saw enough rows, and its norms."""
    shallow, deep = (reads(lambda depth=depth: check.measure(of_depth(session, depth))) for depth in (1, 3))
    assert deep - shallow == 2 * each
    assert 0 < shallow <= most


@pytest.mark.usefixtures("eager")
def test_many_uses_are_read_together(session, reads):
    assert 0 < reads(lambda: state.many_uses(of_depth(session, 1))) <= 5
