"""The first operation that differs under a stress is named with its module and direction, and a harmless one is not."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from fp8parity.checks import CHECKS, Check, Result, RunSpec, first_difference, stress, stresses
from fp8parity.checks.protocol import numbers_of
from sessions import cell
from test_parity_stress import unwritten
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

CPU = torch.device("cpu")
LARGE = partial(stresses.poisoned, byte=stresses.LARGE)
SEEN = re.compile(r"first difference: (an input|the output) of (\S+) in (.*?) \((\w+)\)")


def harmless(x: Tensor) -> Tensor:
    """Memory that is written before it is read: all at once, in parts, by ``out``, and rows by their index."""
    y = torch.empty_like(x)
    y[:8] = x[:8]
    y[8:].copy_(x[8:])
    z = torch.mm(y, torch.eye(16), out=torch.empty(16, 16))
    w = torch.ones_like(torch.empty_like(z)) * torch.empty_like(z).zero_()
    w = w.new_empty(w.shape)
    w[torch.arange(8)] = z[:8]
    w[torch.arange(8, 16)] = z[8:]
    return w


def adds(x: Tensor) -> Tensor:
    return x * (1 + unwritten().gt(1))


def accumulates(x: Tensor) -> Tensor:
    return unwritten(256).view(16, 16).add_(x)


def writes_unseen(x: Tensor) -> Tensor:
    """As a vendor's kernel: torch does not know that it writes."""
    y = x + 0
    y.numpy()[0, 0] = 2 if unwritten().numpy()[0] > 1 else 1
    return y.exp()


def fails(x: Tensor) -> Tensor:
    if unwritten().clamp(max=2).item() > 1:
        raise RuntimeError("an illegal index")
    return x


def only_unwatched(x: Tensor) -> Tensor:
    return x if is_in_torch_dispatch_mode() else adds(x)


def refuses(x: Tensor) -> Tensor:
    if is_in_torch_dispatch_mode():
        raise RuntimeError("not while watched")
    return adds(x)


class Pass(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward = backward
        return forward(harmless(x))

    @staticmethod
    def backward(ctx, dy):
        return ctx.backward(harmless(dy)), None, None


class Layer(nn.Module):
    def __init__(self, plants: dict[str, Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.plants = [plants.get(phase, torch.clone) for phase in ("forward", "backward")]

    def forward(self, x: Tensor) -> Tensor:
        return Pass.apply(x, *self.plants)


class Block(nn.Module):
    """Two layers share an input, and a third one reads both."""

    def __init__(self, plant: Callable[[Tensor], Tensor], name: str, phase: str) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({n: Layer({phase: plant} if n == name else {}) for n in ("q", "k", "o")})

    def forward(self, x: Tensor) -> Tensor:
        q, k = (torch.compile(torch.sin)(self.layers[n](x)) for n in ("q", "k"))
        return self.layers["o"](q + k)


def measure(block: Callable[[], Block], spec: RunSpec) -> Result:
    x = torch.ones(16, 16).requires_grad_()
    y = block()(x)
    y.sum().backward()
    assert x.grad is not None
    return numbers_of("fprop gain", {"y": float(y.detach().double().norm()), "dx": float(x.grad.double().norm())}), []


def found(session, monkeypatch, plant, name="k", phase="forward") -> list[str]:
    """The notes of the check under one stress."""
    monkeypatch.setattr(stress, "STRESSES", {"memory of large values": (LARGE, stresses.quiet)})
    monkeypatch.setitem(CHECKS, "gemm", Check("gemm", partial(measure, partial(Block, plant, name, phase))))
    return session.measure("gemm", cell("te-current"), stress=True).notes


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("name", ["q", "k", "o"])
@pytest.mark.parametrize(
    ("plant", "operation", "what"),
    [
        (adds, "aten.gt.Scalar", "an input"),
        (accumulates, "aten.add_.Tensor", "an input"),
        (writes_unseen, "aten.exp.default", "an input"),
    ],
)
def test_first_difference_is_named_with_its_module(plant, operation, what, name, phase, session, monkeypatch):
    (note,) = found(session, monkeypatch, plant, name, phase)
    assert [m.groups() for m in SEEN.finditer(note)] == [(what, operation, f"Block.layers.{name}", phase)]


def test_operation_before_an_error_is_named(session, monkeypatch):
    (note,) = found(session, monkeypatch, fails)
    assert "it raises RuntimeError: an illegal index; first difference: an input of aten.clamp.default in" in note


def test_harmless_memory_is_no_difference(session, monkeypatch):
    assert found(session, monkeypatch, torch.clone) == []
    check = Check("gemm", partial(measure, partial(Block, torch.clone, "k", "forward")))
    quiet, large = (
        partial(stress._values, spec=session.subject("te-current"), stress=s) for s in (stresses.quiet, LARGE)
    )
    assert first_difference.first_difference(check, quiet, large, CPU) == first_difference.NOT_AGAIN


def test_difference_that_does_not_repeat_is_said(session, monkeypatch):
    (note,) = found(session, monkeypatch, only_unwatched)
    assert note.endswith("; it did not happen again while it was watched")


def test_check_that_cannot_be_watched_stays_red(session, monkeypatch):
    (note,) = found(session, monkeypatch, refuses)
    assert note.startswith("memory of large values: fprop gain @ y is ")
    assert note.endswith("the operation could not be named: when watched, it raises RuntimeError: not while watched")


def on_cpu(work: Callable[[], object]) -> list[str]:
    """The operations of a CPU in place of a GPU's kernels."""
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        work()
    leaves = [e for e in trace.events() if not e.cpu_children]
    return [e.name for e in sorted(leaves, key=lambda e: e.time_range.start)]


def four(spec: RunSpec) -> Result:
    torch.ones(4).clone().t().sin()
    return [], []


def profiles_itself(spec: RunSpec) -> Result:
    on_cpu(partial(four, spec))
    return [], []


@pytest.mark.parametrize(
    ("first", "kernels"),
    [(0, {"fill_"}), (2, {"copy_"}), (3, set()), (4, {"sin"})],
    ids=["ones", "clone", "between", "sin"],
)
def test_kernels_are_those_between_two_marks(first, kernels, session, monkeypatch):
    monkeypatch.setattr(first_difference, "launched", on_cpu)
    run = partial(stress._values, spec=session.subject("te-current"), stress=stresses.quiet)
    text = first_difference._kernels(Check("gemm", four), run, first, CPU)
    assert {name for name in ("fill_", "copy_", "sin") if name in text} == kernels


def test_kernels_of_a_check_that_profiles_are_not_named(session, monkeypatch):
    monkeypatch.setattr(first_difference, "launched", on_cpu)
    run = partial(stress._values, spec=session.subject("te-current"), stress=stresses.quiet)
    text = first_difference._kernels(Check("gemm", profiles_itself), run, 0, CPU)
    assert text == "; its kernels could not be named: they are not in the profile"
    assert "aten::sin" in on_cpu(partial(four, session.subject("te-current")))
