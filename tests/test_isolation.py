"""A failed capture of one cell does not affect the next, and a run frees its tensors before the reset."""

from __future__ import annotations

import weakref

import pytest
import torch
from fp8parity.training import hardware as isolation
from fp8parity.training.hardware import reset_state

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
def test_random_numbers_after_a_failed_capture_follow_the_seed():
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


def test_an_isolated_run_is_freed_before_the_reset(monkeypatch):
    alive: list[bool] = []

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    @isolation.isolated()
    def run() -> int:
        local = Held()
        held.append(weakref.ref(local))
        return 7

    monkeypatch.setattr(isolation, "reset_state", lambda: alive.append(held[0]() is not None))
    assert run() == 7 and alive == [False]
