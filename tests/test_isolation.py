"""What a cell leaves to the next one."""

from __future__ import annotations

import pytest
import torch
from fp8parity.training.isolation import reset_state

ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="captures need a GPU")


def failed_capture() -> None:
    """Capture a step that draws random numbers and then waits for the device, which a capture cannot."""
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="capture"), torch.cuda.graph(graph):
        torch.rand(4, device="cuda").sum().item()


@ON_GPU
def test_a_failed_capture_breaks_random_numbers():
    """If this fails, torch ends a failed capture, and ``reset_state`` needs no new state of the generator."""
    failed_capture()
    with pytest.raises(RuntimeError, match="^Offset increment outside graph capture"):
        torch.rand(4, device="cuda")
    reset_state()


@ON_GPU
def test_after_a_failed_capture_random_numbers_are_those_of_the_seed():
    torch.manual_seed(7)
    expected = torch.rand(4, device="cuda")
    failed_capture()
    reset_state()
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4, device="cuda"), expected)
    replayed = torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed += torch.rand(4, device="cuda")
    graph.replay()
    assert bool((replayed > 0).all())


@ON_GPU
def test_the_numbers_go_on_after_a_reset():
    """A new state has the seed and the position of the one before."""
    torch.manual_seed(7)
    first = torch.rand(4, device="cuda")
    reset_state()
    second = torch.rand(4, device="cuda")
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    torch.rand(4, device="cuda")
    assert torch.equal(torch.rand(4, device="cuda"), second)
