"""The check of Inductor's configurations, on the CPU: Inductor's own autotuner with stand-ins for what it launches. Each planted fault is
found, and its kernel named."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fp8parity.cells import Cell
from fp8parity.checks import autotune
from fp8parity.inductor import Configurations, barriers, with_barriers
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile, CompiledTritonKernels
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

CELL = Cell("ao-rowwise", "emulated", "nano")


class Launcher:
    """A compiled configuration: says which one it is."""

    store_cubin, cache_hash = False, ""

    def __init__(self, name: str, spills: int | None = 0) -> None:
        self.config, self.n_spills = Named(name), spills

    def __call__(self, *args, stream=None, **kwargs) -> str:
        return str(self.config)


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Kernel(CachingAutotuner):
    """Inductor's autotuner, with what ``run`` asks of it, and launchers that exist from ``precompile`` on."""

    def __init__(self, name: str, *configs: str, made: bool = False, custom: bool = False, **spills: int) -> None:
        self.fn, self.lock, self.custom_kernel = SimpleNamespace(__name__=name), threading.Lock(), custom
        self.all = [Launcher(c, spills.get(c)) for c in configs]
        self.launchers = list(self.all) if made else []
        self.triton_meta, self.inductor_meta, self.device_props = {}, {}, SimpleNamespace(type="cuda")
        self.triton_interpret = self.dump_launch_params = self.dump_launch_tensors = self.deterministic_mode = self.is_backward = False
        self.heuristic_type = self.compile_id = self._profiler_ctx = self._debug_call = None
        self._plugins, self._cache_eligible = [], True
        self._cached_launcher = Launcher("the fastest") if made else None

    def precompile(self) -> None:
        assert not self.launchers
        self.launchers = list(self.all)

    def autotune_to_one_config(self, *args, **kwargs) -> None:
        raise AssertionError("timed, which needs a GPU")

    def coordinate_descent_tuning(self, launcher, *args, **kwargs) -> Launcher:
        tuned = Launcher("tuned further")
        tuned.config.found_by_coordesc = True
        return tuned


@pytest.fixture
def kernels():
    return [Kernel("quantise", "X2", "X1", "X4", made=True), Kernel("add", "X1"), Kernel("norm", "X1", "X2")]


def run(kernels) -> list[str]:
    return [k.run(stream=0) for k in kernels]


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
        assert chosen.describe(kernels[0], 2) == "quantise in X4"


@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (Kernel("k", "X1", "X2", X1=16, X2=17), ["X1"]),
        (Kernel("k", "X1", "X2", X1=17, X2=17), ["X1", "X2"]),
        (Kernel("k", "X1", "X2", X2=17, custom=True), ["X1", "X2"]),
    ],
)
def test_what_inductor_would_not_time_is_left_out(kernel, found):
    with Configurations() as chosen:
        kernel.run(stream=0)
        assert [str(launcher.config) for launcher in chosen.found[kernel]] == found


def test_a_configuration_that_inductor_tunes_further_is_an_error(kernels):
    kernels[0].inductor_meta["coordinate_descent_tuning"] = True
    with Configurations(), pytest.raises(RuntimeError, match="^quantise ran in another configuration than X1$"):
        run(kernels)


def test_nothing_gets_in_or_out(kernels, monkeypatch):
    """Code compiled before, caches on disk and in the process, settings."""
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(len(resets)))
    before, real = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), CachingAutotuner.run
    CompiledTritonKernels._cache["tuned"] = None

    def inside():
        with Configurations():
            assert CompiledTritonKernels._cache == {}
            assert os.environ["TORCHINDUCTOR_CACHE_DIR"] not in (before, "")
            assert (config.coordinate_descent_tuning, config.autotune_remote_cache) == (False, False)
            CompiledTritonKernels._cache["chosen"] = None
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


def test_a_barrier_stands_before_what_is_read_back_and_nowhere_else():
    lines = SOURCE.split("\n")
    assert with_barriers(SOURCE).split("\n") == [*lines[:5], "        tl.debug_barrier()", *lines[5:]]
    unread = "\n".join(lines[:5])
    assert with_barriers(unread) == unread
    second = SOURCE.replace("tl.load(out_ptr1", "tl.load(in_ptr1 + (r0_1)) + tl.load(out_ptr1")
    assert with_barriers(second).count("tl.debug_barrier()") == 1


def test_barriers_reach_what_is_compiled_inside_alone(monkeypatch):
    monkeypatch.setattr(AsyncCompile, "triton", lambda self, name, source, device_str="cuda": (name, source, device_str))
    with barriers() as changed:
        assert AsyncCompile.triton(None, "k", SOURCE, device_str="xpu") == ("k", with_barriers(SOURCE), "xpu")
        assert AsyncCompile.triton(None, "other", "pass\n") == ("other", "pass\n", "cuda")
    assert changed == ["k"]
    assert AsyncCompile.triton(None, "k", SOURCE) == ("k", SOURCE, "cuda")


def test_poison_is_nan_in_every_format(monkeypatch):
    made, emptied = [], []
    real = torch.full
    monkeypatch.setattr(torch, "full", lambda *terms, **how: made.append(real(*terms, **how)) or made[-1])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(len(made)))
    autotune.poison(2**20, torch.device("cpu"))
    assert emptied == [0]
    assert sorted({t.nbytes for t in made}) == [2**19 + 4, 2**20 + 4]
    assert len(made) == 65
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu):
        assert made[0].view(dtype).float().isnan().all()


def test_the_peak_is_that_of_the_work_alone(monkeypatch):
    held, peak = [5, 5], []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.append(held[-1]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: held[-1])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: max(peak))
    assert autotune.peak(lambda: peak.append(12), torch.device("cpu")) == 7
    assert peak == [5, 12]


NAN = float("nan")


class Faulty:
    """Stands in for Trial: a compiled step scales the gradient by what ``faults`` says of (kernel, configuration), in the last of
    PASSES alone."""

    kernels: list[Kernel]
    faults: dict[tuple[str, str], float]

    def __init__(self, subject, schedule, compiled=False) -> None:
        assert (subject.model.layers, schedule.length) == (1, 64)
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
def judged(session, kernels, monkeypatch):
    preset = session.preset("nano")
    monkeypatch.setitem(session.models, "nano", replace(preset, model=replace(preset.model, layers=2)))
    poisoned: list[int] = []
    monkeypatch.setattr(autotune, "Trial", Faulty)
    monkeypatch.setattr(autotune, "peak", lambda work, device: work() is None or 7)
    monkeypatch.setattr(autotune, "poison", lambda size, device: poisoned.append(size))

    sound = [Kernel(f"sound{i}", "X1", "X2") for i in range(3)]

    def judge(faults, kernels=(*kernels, *sound)):
        """The verdict, and its notes on the kernels."""
        Faulty.kernels, Faulty.faults = kernels, faults
        verdict = session.numerics("autotune", CELL)
        assert set(poisoned) == {7}
        return verdict, [text for place, text in verdict.lines if place == "note"][1:]

    return judge


SOUND = {("quantise", "X2"): 2e-4, ("norm", "X1"): 1e-6}


def test_sound_configurations_are_green(judged):
    verdict, (by_configuration, *lines) = judged(SOUND)
    assert verdict.status == "pass"
    assert verdict.lines[0] == ("note", "6 kernels, 5 of them in up to 3 configurations")
    assert by_configuration.startswith("all in their first, second ... configuration: ")
    assert [float(x) for x in by_configuration.split(": ")[1].split(" from")[0].split(", ")] == pytest.approx([1e-6, 2e-4, 1e-6], abs=1e-7)
    assert lines == []


@pytest.mark.parametrize("place", [("quantise", "X1"), ("quantise", "X2"), ("quantise", "X4"), ("norm", "X1"), ("norm", "X2")])
@pytest.mark.parametrize(("fault", "far", "side"), [(NAN, "nan", "not in"), (0.3, "0.3", "above")])
def test_the_configuration_that_is_wrong_is_found_and_named(judged, place, fault, far, side):
    verdict, (_, *lines) = judged({**SOUND, place: fault})
    assert verdict.status == "fail"
    ((what, text),) = [line for line in verdict.lines if " @ " in line[0]]
    assert what == "configuration difference @ one block"
    assert re.match(rf"{far}\d* is {side} \[0, 0\.\d+\] \(", text)
    assert len(lines) == 1
    assert lines[0].startswith(f"{place[0]} in {place[1]}: alone {far} from eager; in others ")


def test_two_faults_are_two_lines(judged):
    _, (_, *lines) = judged({("quantise", "X4"): NAN, ("norm", "X2"): 0.4})
    assert [line.split(":")[0] for line in lines] == ["norm in X2", "quantise in X4"]


@pytest.mark.parametrize(
    ("faults", "note"),
    [
        ({("add", "X1"): NAN}, "every configuration holds NaN: no kernel can be told from the others"),
        ({("quantise", "X2"): -0.2, ("norm", "X2"): -0.2}, None),
        ({("norm", "X1"): NAN, ("norm", "X2"): NAN}, "every configuration holds NaN: no kernel can be told from the others"),
    ],
)
def test_where_nobody_can_be_named_that_is_said(judged, faults, note):
    verdict, (_, *lines) = judged(faults)
    assert verdict.status == "fail"
    assert lines == [note] if note else len(lines) == 2


def test_kernels_that_are_wrong_together_alone(judged, monkeypatch):
    """Far from eager only where both run in their second configuration."""
    pairs = [Kernel("a", "X1", "X2"), Kernel("b", "X1", "X2")]
    monkeypatch.setattr(Faulty, "step", lambda self, number, update: torch.ones(8) * (1.5 if together(self) else 1.0))

    def together(trial) -> bool:
        return trial.compiled and run(pairs) == ["X2", "X2"]

    verdict, (_, *lines) = judged({}, pairs)
    assert (verdict.status, lines) == ("fail", ["no kernel is far from eager alone"])


@pytest.mark.parametrize("kernels", [[], [Kernel("add", "X1")]])
def test_a_block_without_a_tuned_kernel_is_an_error(session, judged, kernels):
    words = f"{len(kernels)} kernels ran, none of them in several configurations: there is nothing to compare"
    with pytest.raises(ValueError, match=f"^{words}$"):
        judged({}, kernels)


def test_where_it_runs(session):
    def why(name: str, device: str) -> str | None:
        recipe = session._subject(Cell(name, "native", "nano")).recipe
        return autotune.why_not(SimpleNamespace(device=torch.device(device), recipe=recipe))

    assert why("ao-rowwise", "cpu") == "Inductor chooses between configurations of Triton kernels, on a GPU"
    assert (why("bf16", "cuda"), why("ao-rowwise", "cuda")) == (None, None)
    assert why("te-block", "cuda") == "transformer_engine brings its kernels; Inductor compiles torchao's casts and BF16's blocks"
