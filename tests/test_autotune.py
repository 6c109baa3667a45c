"""The check of Inductor's configurations, on the CPU with stand-ins for its kernels: each planted fault is found, and its kernel named."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from fp8parity.cells import Cell
from fp8parity.checks import autotune
from fp8parity.inductor import Configurations, barriers, with_barriers

CELL = Cell("ao-rowwise", "emulated", "nano")


class Autotuner:
    """As Inductor's CachingAutotuner: without a choice it times its configurations, and the last is the fastest."""

    def __init__(self, name: str, configs: list[str]) -> None:
        self.fn, self.configs = SimpleNamespace(__name__=name), configs
        self.launchers: list[SimpleNamespace] = []
        self._cached_launcher: object = "the fastest"

    def precompile(self) -> None:
        self.launchers = [SimpleNamespace(config=c) for c in self.configs]

    def run(self) -> str:
        if not self.launchers:
            self.precompile()
        shortcut = self._cached_launcher is not None
        return "shortcut" if shortcut else self.launchers[-1].config


@pytest.fixture
def kernels(monkeypatch):
    monkeypatch.setattr("torch._inductor.runtime.triton_heuristics.CachingAutotuner", Autotuner)
    return [Autotuner("quantise", ["X: 2", "X: 1", "X: 4"]), Autotuner("add", ["X: 1"]), Autotuner("norm", ["X: 1", "X: 2"])]


def run(kernels) -> list[str]:
    return [k.run() for k in kernels]


def test_each_configuration_can_be_chosen(kernels):
    with Configurations() as chosen:
        assert (chosen.width, chosen.tuned) == (0, [])
        assert run(kernels) == ["X: 1", "X: 1", "X: 1"]
        assert (chosen.width, chosen.tuned) == (3, [kernels[0], kernels[2]])
        chosen.choose(1)
        assert run(kernels) == ["X: 2", "X: 1", "X: 2"]
        chosen.choose(2)
        assert run(kernels) == ["X: 4", "X: 1", "X: 1"]
        chosen.choose(2, only=kernels[0], rest=1)
        assert run(kernels) == ["X: 4", "X: 1", "X: 2"]
        chosen.choose(1, only=kernels[2])
        assert run(kernels) == ["X: 1", "X: 1", "X: 2"]
        assert chosen.describe(kernels[0], 2) == "quantise in X: 4"


def test_a_choice_ends_with_its_block(kernels, monkeypatch):
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(len(resets)))
    with pytest.raises(RuntimeError, match="in the block"), Configurations():
        raise RuntimeError("in the block")
    assert resets == [0, 1]
    assert kernels[0].run() == "shortcut"


def test_inductor_has_what_is_reached_for():
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    assert list(inspect.signature(AsyncCompile.triton).parameters)[:3] == ["self", "kernel_name", "source_code"]
    assert {"stream"} <= set(inspect.signature(CachingAutotuner.run).parameters)
    assert "self.launchers" in inspect.getsource(CachingAutotuner.__init__)
    assert "self.launchers = " in inspect.getsource(CachingAutotuner)
    assert all(p.default is not p.empty for p in list(inspect.signature(CachingAutotuner.precompile).parameters.values())[1:])


SOURCE = """\
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp0 = tl.load(in_ptr0 + (r0_1), r0_mask)
        tl.store(out_ptr1 + (r0_1), tmp0, r0_mask)
    tmp1 = tl.load(in_ptr1 + (x0), None)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        tmp2 = tl.load(out_ptr1 + (r0_1), r0_mask)"""


def test_a_barrier_stands_before_what_is_read_back_and_nowhere_else():
    lines = SOURCE.splitlines()
    assert with_barriers(SOURCE).splitlines() == [*lines[:5], "        tl.debug_barrier()", lines[5]]
    unread = "\n".join(lines[:5])
    assert with_barriers(unread) == unread


def test_barriers_reach_what_is_compiled_inside_alone(monkeypatch):
    from torch._inductor.async_compile import AsyncCompile

    monkeypatch.setattr(AsyncCompile, "triton", lambda self, name, source, device_str="cuda": (name, source, device_str))
    with barriers():
        assert AsyncCompile.triton(None, "k", SOURCE, device_str="xpu") == ("k", with_barriers(SOURCE), "xpu")
    assert AsyncCompile.triton(None, "k", SOURCE) == ("k", SOURCE, "cuda")


FAULTS = {
    "sound": lambda config: 1.0,
    "reads NaN": lambda config: float("nan") if config == "X: 4" else 1.0,
    "reads stale numbers": lambda config: 1.3 if config == "X: 4" else 1.0,
}


@pytest.fixture
def judged(session, kernels, monkeypatch):
    def judge(fault: str, kernels=kernels):
        """The verdict on a compiled step whose first kernel scales the gradient as the fault says."""

        class Trial:
            def __init__(self, subject, schedule, compiled=False):
                assert (subject.model.layers, schedule) == (1, session.preset("nano").schedule)
                self.compiled = compiled

            def step(self, number, update):
                exact = torch.linspace(-1, 1, 8)
                return exact * FAULTS[fault](run(kernels)[0]) if self.compiled else exact

        monkeypatch.setattr(autotune, "Trial", Trial)
        monkeypatch.setattr(autotune, "peak", lambda work, device: work() is None or 7)
        monkeypatch.setattr(autotune, "poison", lambda size, device: poisoned.append(size))
        return session.numerics("autotune", CELL)

    poisoned: list[int] = []
    yield judge
    assert set(poisoned) == {7}


def test_sound_configurations_are_green(judged):
    verdict = judged("sound")
    assert verdict.status == "pass"
    assert verdict.lines == [("note", "3 kernels, 2 of them in up to 3 configurations")]


@pytest.mark.parametrize(("fault", "far"), [("reads NaN", "nan is not in"), ("reads stale numbers", "0.3 is above")])
def test_the_configuration_that_is_wrong_is_found_and_named(judged, fault, far):
    verdict = judged(fault)
    assert verdict.status == "fail"
    (place, text), _, (_, note) = verdict.lines
    assert place == "configuration difference @ one block"
    assert text.startswith(f"{far} [0, ")
    assert note == f"quantise in X: 4: alone {far.split()[0]} from eager; in others 0"


def test_a_block_without_a_tuned_kernel_is_red(judged):
    verdict = judged("sound", [Autotuner("add", ["X: 1"])])
    assert [place for place, _ in verdict.lines] == ["autotuned kernels @ one block", "note"]


def test_where_it_runs(session):
    assert session.why_not("autotune", CELL) == "Inductor chooses between configurations of Triton kernels, on a GPU"
    gpu = {name: autotune.why_not(SimpleNamespace(device=torch.device("cuda"), recipe=session_recipe(session, name))) for name in NAMES}
    assert gpu == dict.fromkeys(("bf16", "ao-rowwise")) | {
        "te-block": "transformer_engine brings its kernels; Inductor compiles torchao's casts and BF16's blocks"
    }


NAMES = ("bf16", "te-block", "ao-rowwise")


def session_recipe(session, name):
    return session._subject(Cell(name, "native", "nano")).recipe
