"""A run probes its own gradient twice: quantization that stops is found, and training does not change."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from faults.plants import after
from fp8parity import recipes
from fp8parity.judging import loss
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.numerics.scaling import SCALE_RULES
from fp8parity.numerics.spec import LinearSpec
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Trajectory
from fp8parity.training import loop, probe, step
from fp8parity.training.variants import Parts, Variant
from fp8parity.workload import corpus
from fp8parity.workload.presets import presets
from fp8parity.workload.schedule import SCHEDULES, Schedule
from own_models import Pair, small, trained

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")
SHORT = replace(
    SCHEDULES["micro"], steps=16, rows=4, length=64, validation_every=8, validation_rows=4, tail=8, warmup=4
)


def micro(recipe: str, variant: Variant | None = None, schedule: Schedule = SHORT, seed: int = 0) -> Trajectory:
    execution = Execution.NATIVE if recipe == "bf16" else Execution.EMULATED
    config, data = presets()["micro"].model, corpus.load("topics")
    return loop.train(config, recipes.get(recipe), execution, schedule, data, seed, device=CPU, variant=variant)


def switch_off(parts: Parts) -> None:
    """All quantized linears compute in BF16 from now on."""
    for module in parts.model.modules():
        if isinstance(module, EmulatedLinear):
            module.spec = LinearSpec()


def untrained(parts: Parts) -> None:
    """The weight gradients of one linear are zero from now on."""
    parts.model.get_parameter("layers.1.mlp.up_proj.weight").register_hook(torch.zeros_like)


def misscaled(parts: Parts) -> None:
    """Scales are 2^16 times too small from now on: small values are rounded to zero."""
    for module in parts.model.modules():
        if isinstance(module, EmulatedLinear):
            module.spec = LinearSpec(**{name: replace(op, scale="broken") for name, op in module.spec})


@cache
def controls() -> list[Trajectory]:
    return [micro("bf16", seed=seed) for seed in (0, 1)]


def judged(variant: Variant | None, recipe: str = "te-current") -> Verdict:
    """The verdict on two seeds of a recipe. The BF16 runs are the golden, too."""
    runs = [micro(recipe, variant, seed=seed).model_copy(update={"variant": ""}) for seed in (0, 1)]
    row = LossRow(margin=0.01, seeds=(2,), min_loss_drop=0, why="a run of 16 steps")
    return loss.judge(
        runs, controls(), from_runs(controls(), []), Policy(path=Path("policy.toml"), loss=(row,)), MeasuredNumbers()
    )


def test_a_sound_run_is_green(eager):
    found = judged(None)
    assert found.status == "pass", found.message()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (switch_off, "gradient sqnr rise, step 14, seed 0: inf dB is above"),
        (misscaled, "weight gradient sqnr of layers.0.attention.q_proj.weight, step 14, seed 0: "),
        (untrained, "weight gradient sqnr of layers.1.mlp.up_proj.weight, step 14, seed 0: 0 dB is below"),
    ],
)
def test_a_fault_after_the_first_validation_is_found(change, words, eager, monkeypatch):
    """The losses pass: that of BF16 lies in any band that is made for FP8. Kinds of CPU give other last digits."""
    monkeypatch.setitem(SCALE_RULES, "broken", lambda amax, fmt: 2.0**-16 * SCALE_RULES["te-fp32"](amax, fmt))
    found = judged(after(8, change))
    assert found.status == "fail" and words in found.headline, found.message()
    assert {r.metric for r in found.failing} <= {"gradient sqnr rise", "weight gradient sqnr"}


def test_a_noise_that_starts_again_in_each_step_is_found(eager, monkeypatch):
    """The first step is sound, so no single number shows it."""
    real = step.update

    def again(converted, *rest):
        converted.generator.manual_seed(0)
        return real(converted, *rest)

    assert judged(None, "te-nvfp4").status == "pass"
    monkeypatch.setattr(step, "update", again)
    found = judged(None, "te-nvfp4")
    assert found.status == "fail"
    assert found.headline.startswith("repeated noise, step 7, seed 0: "), found.message()


@pytest.mark.parametrize(("recipe", "accumulation"), [("te-delayed", 1), ("te-nvfp4", 2)])
def test_training_is_bit_equal_without_the_probe(recipe, accumulation, monkeypatch, eager):
    """Stochastic rounding draws from a generator, delayed scales keep amaxes: neither sees the probe."""
    schedule = replace(SHORT, steps=8, validation_every=5, accumulation=accumulation)
    seen = micro(recipe, schedule=schedule)
    state = torch.get_rng_state()
    monkeypatch.setattr(probe, "steps_of", lambda *_: [])
    plain = micro(recipe, schedule=schedule)
    kept = ("loss", "grad_norm", "validation", "final_weights", "first_gradients", "hyperparameters")
    assert [n for n in kept if getattr(seen, n) != getattr(plain, n)] == []
    assert torch.equal(state, torch.get_rng_state())
    assert [p.step for p in seen.probes] == [3, 6, 7] and plain.probes == []
    assert all(8 < p.worst <= p.sqnr < 35 for p in seen.probes)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_the_gradient_of_the_same_arithmetic_is_bit_equal(accumulation, monkeypatch, eager):
    """A recipe whose linears quantize nothing is the BF16 model, clipped or not."""
    schedule = replace(SHORT, steps=8, rows=2, accumulation=accumulation)
    made = micro("te-current", after(1, switch_off), schedule)
    assert [p.step for p in made.probes] == [3, 6, 7]
    low = 45 if accumulation > 1 else math.inf  # the sum over microbatches is in BF16 here, and in FP32 there
    assert all(p.sqnr >= low for p in made.probes)


def test_a_run_without_a_probe_says_why(eager):
    def frozen(seed: int) -> Pair:
        made = Pair(tied=False)
        made.inner.weight.requires_grad_(False)
        made.unembed.weight.requires_grad_(False)
        return made

    made = trained(small(), "te-current")
    assert [p.step for p in made.probes] == [1, 2] and made.unprobed == ""
    none = trained(small(factory=frozen, keep=("unembed",)), "te-current")
    short = micro("te-delayed", schedule=replace(SHORT, steps=2, tail=2))
    plain = micro("bf16", schedule=replace(SHORT, steps=2, tail=2))
    assert none.probes == short.probes == plain.probes == []
    assert none.unprobed == "no weight of a linear that the recipe quantizes is trained under its own name"
    assert (short.unprobed, plain.unprobed) == ("the first validation or the end of the run comes too early", "")


@pytest.mark.parametrize("where", ["summed", "norms"])
def test_too_little_memory_ends_the_probe_and_not_the_run(where, monkeypatch):
    def full(*args: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(probe, where, full)
    made = micro("te-current", schedule=replace(SHORT, steps=4, tail=2))
    full_gpu = "the memory of the GPU does not hold a second model in BF16"
    assert (made.probes, made.unprobed, len(made.loss)) == ([], full_gpu, 4)


def test_the_peak_of_a_gpu_is_that_of_the_run_alone(monkeypatch):
    """In bytes: 5 before the first probe, 90 in it, 7 after it, 80 in the second one."""
    peak = [3]
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, 1))
    memory = probe.PeakMemory(torch.device("cuda"))
    for steps, probed in ((5, 90), (7, 80)):
        peak[0] = steps
        memory.pause()
        peak[0] = probed
        memory.resume()
    assert memory.read() == 7
