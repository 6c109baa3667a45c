"""The predicted step: exact where the parts follow a law, near it between measured sizes, and its refusals."""

from __future__ import annotations

from dataclasses import replace

import made_up_gpu as gpu
import pytest
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.workload import shapes
from fp8parity.workload.shapes import ModelShape, Workload
from fp8parity_lab.prediction import Part, fits
from fp8parity_lab.prediction.basis import basis
from fp8parity_lab.prediction.residuals import Size, excesses
from fp8parity_lab.prediction.step import (
    ATTENTION,
    CASTS,
    GEMMS,
    memory_needed,
    refuse_dimensions,
    refuse_memory,
    step_time,
)

CURRENT, BF16, ONE = RECIPES["te-current"], RECIPES["bf16"], shapes.get("1b")
ODD = ModelShape("odd", 1000, 4000, 8, 8, 125, 4, 1000)
TINY = ModelShape("one", hidden=8, intermediate=16, heads=2, kv_heads=1, head_dim=4, layers=3, vocab=32)


def test_costs_find_the_rates_and_none_is_negative():
    sizes = ((1e3, 1e6), (1e6, 1e3), (1e5, 1e5), (1e4, 1e6))
    found = fits.costs([({"a": a, "b": b}, 1e-6 + 2e-9 * a + 3e-9 * b) for a, b in sizes])
    assert found.at({"a": 5e5, "b": 2e5}) == pytest.approx(1e-6 + 1e-3 + 6e-4, rel=1e-6)
    falling = fits.costs([({"a": 1.0}, 3.0), ({"a": 2.0}, 2.0), ({"a": 3.0}, 1.0)])
    assert min(falling.rates.values()) >= 0 and falling.rates["a"] == 0


def test_a_measured_size_has_its_own_ratio():
    found = fits.ratios([((10, 10), 2.0), ((1000, 1000), 1.0), ((10, 10), 8.0)])
    assert [found.at((10, 10)), found.at((1000, 1000))] == pytest.approx([4.0, 1.0])
    assert 1.0 < found.at((100, 100)) < 4.0
    assert found.at((12, 12)) == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(("name", "tolerance"), [("base", 0.01), ("1b", 0.03), ("llama3-8b", 0.01)])
@pytest.mark.parametrize("block", [False, True])
def test_a_step_is_the_sum_of_its_parts(name, tolerance, block):
    """1b's GEMMs were not timed: they are interpolated between those of base and of 8b."""
    found, work = gpu.made(), shapes.get(name)
    plain, quantized = (step_time(found, work, r, Execution.NATIVE, block) for r in (BF16, CURRENT))
    assert plain.seconds == pytest.approx(gpu.step(work, "bf16", block), rel=tolerance)
    assert quantized.seconds == pytest.approx(gpu.step(work, "te-current", block), rel=tolerance)
    assert plain.parts[CASTS] == 0 < quantized.parts[CASTS]
    assert quantized.parts[GEMMS] < plain.parts[GEMMS] and quantized.parts[ATTENTION] == plain.parts[ATTENTION]


def test_attention_dilutes_the_speed_up_as_sequences_grow():
    found, ratios = gpu.made(), []
    for length in (512, 2048, 8192, 32_768):
        at = replace(ONE, micro_batch=32_768 // length, sequence=length)
        plain, quantized = (step_time(found, at, r, Execution.NATIVE).seconds for r in (BF16, CURRENT))
        ratios.append(plain / quantized)
    assert ratios == sorted(ratios, reverse=True) and ratios[0] - ratios[-1] > 0.05


def test_a_fused_layer_has_the_attention_of_its_vendor():
    found, work = gpu.made(), shapes.get("base")
    twice = [t.model_copy(update={"form": "te", "seconds": 2 * t.seconds}) for t in found.profile.of(Part.ATTENTION)]
    own = replace(found, profile=found.profile.model_copy(update={"times": [*found.profile.times, *twice]}))
    native, fused = (step_time(own, work, CURRENT, e).parts[ATTENTION] for e in (Execution.NATIVE, Execution.FUSED))
    assert fused == pytest.approx(2 * native)
    assert step_time(found, work, CURRENT, Execution.FUSED).parts[ATTENTION] == pytest.approx(native)


def test_a_gpu_without_a_data_sheet_has_a_measured_roof():
    """The fastest timed GEMMs and the copy represent the peaks."""
    new = gpu.profile("NVIDIA New")
    gemms = (gpu.gemm_times(shapes.get(n)) for n in ("small", "llama3-8b"))
    found = basis([new, *(r.model_copy(update={"provenance": new.provenance}) for r in gemms)], "NVIDIA New")
    assert found is not None and found.roof.source == "measured"
    assert found.roof.bf16_flops == gpu.PEAK["bf16"] and found.roof.bandwidth == pytest.approx(gpu.BANDWIDTH)
    assert 0.9 * gpu.PEAK["te-current"] < found.roof.fp8_flops <= gpu.PEAK["te-current"]
    assert gpu.made().roof.source != "measured"


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload(ODD, 1, 512), r"te-current: q has 1000 output features \(N\), .* not divisible by 16$"),
        (Workload(ONE.shape, 1, 100), r"q has 100 tokens \(M\), .* by 16; change --micro-batch or --sequence$"),
    ],
)
def test_dimensions_that_do_not_fit_are_named(work, message):
    with pytest.raises(ValueError, match=message):
        refuse_dimensions(work, CURRENT)


@pytest.mark.parametrize(
    ("shape", "weights", "token"),
    [
        (TINY, 8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * 16, 2 * (6 * 8 + 2 * 8 + 2 * 4 + 3 * 16)),
        (replace(TINY, gated=False), 8 * 8 + 2 * 4 * 8 + 8 * 8 + 2 * 8 * 16, 2 * (6 * 8 + 2 * 8 + 2 * 4 + 2 * 16)),
        (
            replace(TINY, experts=4, experts_per_token=2, shared=24),
            8 * 8 + 2 * 4 * 8 + 8 * 8 + 3 * 8 * (4 * 16 + 24),
            2 * (6 * 8 + 2 * 8 + 2 * 4 + 3 * (2 * 16 + 24)),
        ),
    ],
)
def test_memory_is_that_of_weights_and_activations(shape, weights, token):
    """A block holds a weight and its gradient in BF16 (4 bytes), a step 18 bytes a parameter and 10 bytes a logit."""
    work = Workload(shape, 2, 16)
    assert memory_needed(work, block=True) == (4 * weights, 32 * token)
    parameters = 3 * (weights + 2 * 8) + 8 + 2 * 32 * 8
    assert memory_needed(work) == (18 * parameters, 32 * (3 * token + 10 * 32))


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload(ONE.shape, 64, 2048), r"1b: a step needs about \d+ GiB, and the GPU has 80 GiB; --micro-batch"),
        (Workload(ONE.shape, 1, 131_072), r"--micro-batch 1 --sequence \d+ fits"),
        (shapes.get("llama3-70b"), r"weights and optimizer alone are 1183 GiB; --block predicts one block"),
    ],
)
def test_too_little_memory_says_what_fits(work, message):
    with pytest.raises(ValueError, match=message) as caught:
        refuse_memory(work, 80 * 2**30)
    words = str(caught.value).split()
    if "--micro-batch" in words:
        batch = int(words[words.index("--micro-batch") + 1])
        length = int(words[words.index("--sequence") + 1]) if "--sequence" in words else work.sequence
        refuse_memory(replace(work, micro_batch=batch, sequence=length), 80 * 2**30)
    refuse_memory(shapes.get("llama3-70b"), 80 * 2**30, block=True)


@pytest.mark.parametrize("name", ["small", "base", "1b"])
def test_gemms_far_below_the_timed_ones_are_extrapolated(name):
    """The narrowest GEMM of Llama 3 8B is that of k and v, 4096 to 1024. It is near the last linear of an MLP."""
    assert (Size.FEATURES in beyond(gpu.made(("llama3-8b",)), shapes.get(name))) == (name != "1b")


def beyond(found, work: Workload, recipe: str = "te-current") -> list[Size]:
    return [e.size for e in excesses(found, work, recipe)]


@pytest.mark.parametrize(
    ("rows", "length", "found"),
    [
        (1, 16, [Size.TOKENS, Size.SEQUENCE]),
        (15, 272, [Size.TOKENS]),
        (16, 256, []),
        (17, 240, [Size.TOKENS, Size.SEQUENCE]),
        (18, 240, [Size.SEQUENCE]),
        (64, 512, []),
        (65, 512, [Size.TOKENS]),
        (1, 65_536, [Size.TOKENS]),
        (1, 131_072, [Size.TOKENS, Size.SEQUENCE]),
    ],
)
def test_a_batch_far_from_the_timed_ones_is_extrapolated(rows, length, found):
    """The GEMMs of 1b are timed with 16,384 tokens, and attention over 512 to 32,768."""
    assert beyond(gpu.made(("1b",)), Workload(ONE.shape, rows, length)) == found
