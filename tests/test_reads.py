"""How often a check copies a number to the host. On a GPU that other processes use, each copy waits for its turn."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from fp8parity.checks import checkpoint, gradients, layers
from fp8parity.checks.large import differing
from sessions import cell

READS = ("tolist", "item", "__float__", "__bool__", "__int__")


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """The methods of tensors that copied a number to the host, call by call."""
    seen: list[str] = []

    def watched(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def read(*args: object) -> object:
            seen.append(name)
            return real(*args)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, watched(name, getattr(torch.Tensor, name)))
    return seen


@pytest.mark.parametrize("check", [gradients, layers, checkpoint], ids=lambda module: module.__name__.split(".")[-1])
def test_a_check_reads_no_more_numbers_for_a_deeper_model(check, session, monkeypatch, reads):
    monkeypatch.setattr(gradients, "TRAINING", replace(gradients.TRAINING, steps=1))
    monkeypatch.setattr(gradients, "trained_state", gradients.trained_state.__wrapped__)
    spec = session.spec(cell("bf16", "native", "micro"))
    counts = []
    for depth in (1, 3):
        reads.clear()
        check.measure(replace(spec, model=replace(spec.model, layers=depth)))
        counts.append(len(reads))
    assert 0 < counts[0] == counts[1] <= 20


def test_blocks_of_a_large_result_are_compared_with_one_read(reads):
    blocks = torch.arange(4.0).repeat(64)
    blocks[9], blocks[200] = torch.nan, 5.0
    assert differing(blocks, 64) == 2 and len(reads) == 1
