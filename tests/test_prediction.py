"""The predicted step: exact where the parts follow a law, near it between measured sizes, and an error bar that holds the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import made_up_gpu as gpu
import pytest
import reports
from fp8parity.prediction import fits
from fp8parity.prediction.basis import basis
from fp8parity.prediction.calibration import calibrate, held_out
from fp8parity.prediction.residuals import Group, measured, residuals
from fp8parity.prediction.step import (
    ATTENTION,
    CASTS,
    GEMMS,
    memory_needed,
    refuse_dimensions,
    refuse_memory,
    step_time,
)
from fp8parity.recipes.registry import RECIPES
from fp8parity.records.cell import Execution, Mode
from fp8parity.timing.blocks import shape_of
from fp8parity.workload import shapes
from fp8parity.workload.shapes import ModelShape, Workload

CURRENT, BF16 = RECIPES["te-current"], RECIPES["bf16"]


class TestFits:
    def test_costs_find_the_rates(self):
        points = [
            ({"a": float(a), "b": float(b)}, 1e-6 + 2e-9 * a + 3e-9 * b)
            for a, b in ((1e3, 1e6), (1e6, 1e3), (1e5, 1e5), (1e4, 1e6))
        ]
        found = fits.costs(points)
        assert found.at({"a": 5e5, "b": 2e5}) == pytest.approx(1e-6 + 1e-3 + 6e-4, rel=1e-6)

    def test_no_rate_is_negative(self):
        found = fits.costs([({"a": 1.0}, 3.0), ({"a": 2.0}, 2.0), ({"a": 3.0}, 1.0)])
        assert min(found.rates.values()) >= 0 and found.rates["a"] == 0

    def test_a_measured_size_has_its_own_ratio(self):
        found = fits.ratios([((10, 10), 2.0), ((1000, 1000), 1.0), ((10, 10), 8.0)])
        assert found.at((10, 10)) == pytest.approx(4.0)
        assert found.at((1000, 1000)) == pytest.approx(1.0)
        assert 1.0 < found.at((100, 100)) < 4.0
        assert found.at((12, 12)) == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(("name", "tolerance"), [("base", 0.01), ("1b", 0.03), ("llama3-8b", 0.01)])
def test_a_step_is_the_sum_of_its_parts(name, tolerance):
    """1b's GEMMs were not timed: they are interpolated between those of base and of 8b."""
    found, work = gpu.made(), shapes.get(name)
    plain, quantized = (step_time(found, work, r, Execution.NATIVE) for r in (BF16, CURRENT))
    assert plain.seconds == pytest.approx(gpu.step(work, "bf16"), rel=tolerance)
    assert quantized.seconds == pytest.approx(gpu.step(work, "te-current"), rel=tolerance)
    assert plain.parts[CASTS] == 0 < quantized.parts[CASTS]
    assert quantized.parts[GEMMS] < plain.parts[GEMMS] and quantized.parts[ATTENTION] == plain.parts[ATTENTION]
    assert sum(plain.share(p) for p in plain.parts) == pytest.approx(1)


def test_attention_dilutes_the_speed_up_as_sequences_grow():
    found, work = gpu.made(), shapes.get("1b")
    ratios = []
    for length in (512, 2048, 8192, 32_768):
        at = replace(work, micro_batch=32_768 // length, sequence=length)
        plain, quantized = (step_time(found, at, r, Execution.NATIVE).seconds for r in (BF16, CURRENT))
        ratios.append(plain / quantized)
    assert ratios == sorted(ratios, reverse=True) and ratios[0] - ratios[-1] > 0.05


def test_a_filter_costs_what_it_leaves_in_bf16():
    found, work = gpu.made(), shapes.get("base")
    whole, none, some = (
        step_time(found, work, replace(CURRENT, filters=f), Execution.NATIVE).seconds
        for f in (("lm_head",), ("proj", "lm_head"), ("mlp",))
    )
    assert none == pytest.approx(step_time(found, work, BF16, Execution.NATIVE).seconds)
    assert whole < some < none


def test_a_block_is_a_layer():
    found, work = gpu.made(), shapes.get("llama3-8b")
    assert step_time(found, work, CURRENT, Execution.NATIVE, block=True).seconds == pytest.approx(
        gpu.step(work, "te-current", block=True), rel=0.01
    )


def test_a_recipe_without_gemms_is_named():
    with pytest.raises(ValueError, match=r"no GEMM of te-block was timed on NVIDIA H100 Made Up \(timed: te-current\)"):
        step_time(gpu.made(), shapes.get("1b"), RECIPES["te-block"], Execution.NATIVE)


def test_a_gpu_without_a_data_sheet_has_a_measured_roof():
    """The fastest timed GEMMs and the copy stand for the peaks."""
    new = gpu.profile("NVIDIA New")
    records = [
        new,
        *(
            gpu.gemm_times(shapes.get(n)).model_copy(update={"provenance": new.provenance})
            for n in ("small", "llama3-8b")
        ),
    ]
    found = basis(records, "NVIDIA New")
    assert found is not None and found.roof.source == "measured"
    assert found.roof.bf16_flops == gpu.PEAK["bf16"] and found.roof.bandwidth == pytest.approx(gpu.BANDWIDTH)
    assert 0.9 * gpu.PEAK["te-current"] < found.roof.fp8_flops <= gpu.PEAK["te-current"]
    assert gpu.made().roof.source != "measured"


GROUP = Group(gpu.NAME, False, "te-current native")


class TestErrorBar:
    MODELS = ("small", "base", "1b", "llama3-8b")

    def cells(self, sd: float, bias: float = 0.0, seed: int = 0):
        works = [shapes.get(name) for name in self.MODELS]
        steps = [gpu.timed(w, off=bias + e) for w, e in zip(works, gpu.noise(len(works), sd, seed), strict=True)]
        found = gpu.made(("small", "base", "1b", "llama3-8b", "llama3-70b"))
        return residuals(found, steps)

    def test_a_bias_of_the_recipe_is_corrected(self):
        """Fusion that the parts do not show makes every step faster than their sum. The fewer models show it, the less is corrected."""
        raw, rows = self.cells(0.0, bias=0.08), held_out(self.cells(0.0, bias=0.08))
        assert len(rows) == 4
        assert all(abs(row.error) < abs(math.exp(-r.error) - 1) for row, r in zip(rows, raw, strict=True))
        assert 0.02 < calibrate(raw).corrections.of(GROUP) < 0.08
        assert calibrate(raw[:2]).corrections.overall < calibrate(raw).corrections.overall

    def test_the_bar_covers_what_it_says(self):
        hits = [r.covered for seed in range(40) for r in held_out(self.cells(0.03, 0.02, seed))]
        assert 0.85 < sum(hits) / len(hits) < 0.99

    def test_a_models_own_cell_does_not_help_it(self):
        """The measured cell of 1b is far off; its own prediction does not know that."""
        steps = [gpu.timed(shapes.get(name), off=0.5 if name == "1b" else 0.0) for name in self.MODELS]
        [row] = [r for r in held_out(residuals(gpu.made(), steps)) if r.cell.work.shape.name == "1b"]
        assert row.error == pytest.approx(math.exp(-0.5) - 1, abs=0.03) and not row.covered

    def test_without_cells_there_is_no_bar(self):
        low, middle, high = calibrate([]).interval(1.3, GROUP)
        assert (low, middle, high) == (0.0, 1.3, math.inf)


class TestMeasured:
    def test_a_cell_knows_its_gpu(self):
        other = reports.provenance(device="NVIDIA Other")
        for record in (
            gpu.timed(shapes.get("1b")),
            gpu.timed(shapes.get("1b")).model_copy(update={"provenance": other}),
        ):
            found = measured(record)
            assert found is not None and found.gpu == record.provenance.device

    def test_another_length_is_in_the_variant(self):
        record = gpu.timed(shapes.get("1b"))
        seen = measured(record.model_copy(update={"variant": "32x512"}))
        assert seen is not None and (seen.work.micro_batch, seen.work.sequence) == (32, 512)
        assert measured(record.model_copy(update={"variant": "another head"})) is None
        assert measured(record.model_copy(update={"tokens": 17})) is None
        assert (
            measured(record.model_copy(update={"attention": "torch's choice"})) is None
        )  # a profile measures another attention
        assert measured(record.model_copy(update={"optimizer": "torch's AdamW"})) is None  # and another optimizer

    def test_a_block_may_have_another_number_of_sequences(self):
        """Its variant names them. A filter or a rest is another block."""
        work = replace(shapes.get("llama3-8b"), micro_batch=2, sequence=4096)
        record = gpu.timed(work).model_copy(update={"block": shape_of(work), "optimizer": ""})
        for variant in ("", "2x4096"):
            seen = measured(record.model_copy(update={"variant": variant}))
            assert seen is not None and seen.block and (seen.work.micro_batch, seen.work.sequence) == (2, 4096)
        for variant in ("2x4096 without k_proj", "2x4096 rest 1s", "4x4096"):
            assert measured(record.model_copy(update={"variant": variant})) is None

    @pytest.mark.parametrize(("mode", "host"), [(m, not m.graphed) for m in Mode])
    def test_a_step_that_waits_for_the_host_is_no_test(self, mode, host):
        assert (measured(gpu.timed(shapes.get("small")).model_copy(update={"mode": mode})) is None) == host

    def test_an_unknown_model_is_left_out(self):
        record = gpu.timed(shapes.get("1b"))
        assert measured(record.model_copy(update={"cell": record.cell.model_copy(update={"model": "theirs"})})) is None


ODD = ModelShape("odd", 1000, 4000, 8, 8, 125, 4, 1000)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (Workload(ODD, 1, 512), r"te-current: q has 1000 output features \(N\), and they are not divisible by 16$"),
        (
            Workload(shapes.get("1b").shape, 1, 100),
            r"te-current: q has 100 tokens \(M\), and they are not divisible by 16; change --micro-batch or --sequence$",
        ),
    ],
)
def test_dimensions_that_do_not_fit_are_named(work, message):
    with pytest.raises(ValueError, match=message):
        refuse_dimensions(work, CURRENT)


def test_the_rows_of_an_expert_are_padded():
    """128 tokens over 12 experts are 11 rows each."""
    refuse_dimensions(
        Workload(ModelShape("experts", 1024, 512, 8, 8, 128, 2, experts=12, experts_per_token=1), 1, 128), CURRENT
    )


def test_a_linear_that_stays_in_bf16_may_have_any_dimension():
    refuse_dimensions(
        Workload(replace(ODD, hidden=1024, head_dim=128, intermediate=4001), 1, 512), replace(CURRENT, filters=("mlp",))
    )


class TestMemory:
    def test_the_estimate_is_near_what_1b_took(self):
        """47,892,066,816 bytes on an H200 (golden/records/h200-throughput-flash.zip)."""
        assert sum(memory_needed(shapes.get("1b"))) == pytest.approx(47_892_066_816, rel=0.15)

    @pytest.mark.parametrize(
        ("work", "message"),
        [
            (
                Workload(shapes.get("1b").shape, 64, 2048),
                r"1b: a step needs about \d+ GiB, and the GPU has 80 GiB; --micro-batch \d+ fits",
            ),
            (Workload(shapes.get("1b").shape, 1, 131_072), r"--micro-batch 1 --sequence \d+ fits"),
            (
                shapes.get("llama3-70b"),
                r"weights and optimizer alone are 1183 GiB; --block predicts one transformer block",
            ),
        ],
    )
    def test_too_little_memory_says_what_fits(self, work, message):
        with pytest.raises(ValueError, match=message) as caught:
            refuse_memory(work, 80 * 2**30)
        words = str(caught.value).split()
        if "--micro-batch" in words:
            batch = int(words[words.index("--micro-batch") + 1])
            length = int(words[words.index("--sequence") + 1]) if "--sequence" in words else work.sequence
            refuse_memory(replace(work, micro_batch=batch, sequence=length), 80 * 2**30)

    def test_a_block_fits(self):
        refuse_memory(shapes.get("llama3-70b"), 80 * 2**30, block=True)
