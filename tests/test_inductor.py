"""Choosing configurations of Inductor's kernels, on Inductor's own autotuner."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import pytest
import torch
from autotuners import Kernel, run, three
from fp8parity.checks import autotune
from fp8parity.training.compilation import Configurations
from sessions import cell
from torch._inductor import config
from torch._inductor.async_compile import CompiledTritonKernels
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


CELL = cell("ao-rowwise", "emulated", "nano")


NAN = float("nan")


class Faulty:
    """Stands in for ShortRun: a compiled step scales the gradient by what ``faults`` says of (kernel, configuration), in the last of
    PASSES alone."""

    kernels: list[Kernel]
    faults: dict[tuple[str, str], float]

    def __init__(self, spec, schedule, compiled=False) -> None:
        assert (spec.model.layers, schedule.length) == (1, 64)
        self.compiled, self.passes = compiled, 0

    def step(self, number, update):
        assert (number, update) == (0, False)
        exact = torch.linspace(-1, 1, 8)
        if not self.compiled:
            return exact
        scale = 1 + sum(self.faults.get((k.fn.__name__, k.run(stream=0)), 0.0) for k in self.kernels)
        self.passes += 1
        last = (self.passes - 1) % autotune.PASSES == 0  # the first pass compiles
        return exact * scale if last else exact


@pytest.fixture
def judged(session, monkeypatch):
    preset = session.preset("nano")
    monkeypatch.setitem(session.presets, "nano", replace(preset, model=replace(preset.model, layers=2)))
    poisoned: list[int] = []
    monkeypatch.setattr(autotune, "ShortRun", Faulty)
    monkeypatch.setattr(autotune, "peak", lambda work, device: work() is None or 7)
    monkeypatch.setattr(autotune, "poison", lambda size, device: poisoned.append(size))

    several = [*three(), *(Kernel(f"sound{i}", "X1", "X2") for i in range(3))]

    def judge(faults, kernels=several):
        """The verdict, and its notes on the kernels."""
        Faulty.kernels, Faulty.faults = kernels, faults
        verdict = session.numerics("autotune", CELL)
        assert set(poisoned) == {7}
        return verdict, [text for place, text in verdict.lines if place == "note"][1:]

    return judge


SOUND = {("quantize", "X2"): 2e-4, ("norm", "X1"): 1e-6}


def test_sound_configurations_pass(judged):
    verdict, (by_configuration, *lines) = judged(SOUND)
    assert verdict.status == "pass"
    assert verdict.lines[0] == ("note", "6 kernels, 5 of them in up to 3 configurations")
    assert by_configuration.startswith("all in their first, second ... configuration: ")
    assert [float(x) for x in by_configuration.split(": ")[1].split(" from")[0].split(", ")] == pytest.approx(
        [1e-6, 2e-4, 1e-6], abs=1e-7
    )
    assert lines == []


@pytest.mark.parametrize("place", [("quantize", "X2"), ("norm", "X1")])
@pytest.mark.parametrize(("fault", "far", "side"), [(NAN, "nan", "not in"), (0.3, "0.3", "above")])
def test_wrong_configuration_is_found_and_named(judged, place, fault, far, side):
    verdict, (_, *lines) = judged({**SOUND, place: fault})
    assert verdict.status == "fail"
    ((what, text),) = [line for line in verdict.lines if " @ " in line[0]]
    assert what == "configuration difference @ one block"
    assert re.match(rf"{far}\d* is {side} \[0, 0\.\d+\] \(", text)
    assert len(lines) == 1
    assert lines[0].startswith(f"{place[0]} in {place[1]}: alone {far} from eager; in others ")


@pytest.mark.parametrize(
    ("faults", "note"),
    [
        ({("add", "X1"): NAN}, "every configuration holds NaN: the kernels do not differ"),
        ({("quantize", "X2"): -0.2, ("norm", "X2"): -0.2}, None),
    ],
)
def test_kernels_that_cannot_be_named_are_noted(judged, faults, note):
    verdict, (_, *lines) = judged(faults)
    assert verdict.status == "fail"
    assert lines == [note] if note else len(lines) == 2


@pytest.mark.parametrize("kernels", [[], [Kernel("add", "X1")]])
def test_block_without_tuned_kernels_is_an_error(session, judged, kernels):
    words = f"{len(kernels)} kernels ran, none of them in several configurations: there is nothing to compare"
    with pytest.raises(ValueError, match=f"^{words}$"):
        judged({}, kernels)
