"""What a report shows of throughput in depth: roofline, shapes, model sizes, the time split, worth and energy."""

from __future__ import annotations

import json
import math

import gemm_records
import made_up_gpu as gpu
import pytest
import reports
from fp8parity.judging.policy.claims import Claim
from fp8parity.judging.verdict import Verdict
from fp8parity.records import sets
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.gemms import GemmMode
from fp8parity.records.schema import Throughput, TimeSplit, Trajectory
from fp8parity.records.times import Category, Split
from fp8parity.report import RENDERERS, figures, gemms, throughput, throughput_figures, view, worths
from fp8parity.report.evidence import Evidence
from fp8parity.report.throughput import GemmPoint, SizePoint
from narrowed import some
from processes import ROOT
from timings import CALM

CELL = Cell(model="tiny", recipe="te-current", execution=Execution.NATIVE, corpus="synthetic")


def timing(**changes: object) -> Throughput:
    """A timed step of ``CELL``: blocks of 10 steps of 1,000 tokens."""
    watch = CALM.model_copy(update={"watts": [175.0, 175.0]})
    made = Throughput(
        cell=CELL, mode=Mode.COMPILED, tokens=1000, steps_a_block=10, bf16_seconds=[0.4] * 6, recipe_seconds=[0.32] * 6, bf16_memory=1,
        recipe_memory=1, flops_per_token=6e9, peak_flops=None, watch=watch, provenance=reports.provenance(), session="s",
    )  # fmt: skip
    return made.model_copy(update=changes)


def steep(run: Trajectory) -> Trajectory:
    """The run with a loss that falls along a line."""
    return run.model_copy(update={"loss": [5.0 - 0.01 * s + 0.001 * math.sin(s) for s in range(run.steps)]})


def split() -> TimeSplit:
    bf16 = Split(seconds=0.01, categories={Category.GEMM: 0.006, Category.ATTENTION: 0.003, Category.IDLE: 0.001})
    recipe = Split(
        seconds=0.008, categories={Category.GEMM: 0.003, Category.QUANTIZE: 0.002, Category.ATTENTION: 0.003}
    )
    return TimeSplit(
        cell=CELL,
        mode=Mode.COMPILED,
        tokens=1000,
        bf16=bf16,
        recipe=recipe,
        provenance=reports.provenance(),
        session="s",
    )


@pytest.fixture(scope="module")
def report() -> view.Report:
    """A session with losses and speeds of te-current on tiny, its step, GEMMs, time split and the GPU's profile."""
    verdicts, given = reports.session(recipes=("te-current",), speeds=True)
    speeds = [v.model_copy(update={"cell": CELL}) if v.speed else v for v in verdicts]
    records = [*given.records, timing(), split(), gemm_records.made(), gpu.profile()]
    return view.build(speeds, {}, [], "m", Evidence(records, given.goldens, given.policy))


class TestGemms:
    def test_a_point_has_its_intensity_and_rates(self, report):
        point = next(p for p in report.throughput.gemms if (p.place, p.mode) == ("qkv fprop", GemmMode.KERNEL))
        m, n, k = 15_872, 12_288, 4096
        assert point.gflops == pytest.approx(2 * m * n * k / 1e9)
        assert point.intensity == pytest.approx(
            (2 * m * n * k / (2 * (m * k + n * k + m * n)), 2 * m * n * k / (m * k + n * k + 2 * m * n))
        )
        assert point.tflops[0] == pytest.approx(640, rel=0.01) and point.ratio == pytest.approx(1.9, rel=0.01)

    def test_a_gemm_that_failed_is_no_point(self):
        record = gemm_records.changed(
            gemm_records.made(), "qkv fprop kernel", failed="out of memory", bf16_seconds=[], recipe_seconds=[]
        )
        shown = throughput.view([], Evidence([record])).gemms
        assert len(shown) == len(record.gemms) - 1 and not any(
            (p.place, p.mode) == ("qkv fprop", "kernel") for p in shown
        )

    def test_records_of_another_tool_are_left_out(self):
        others = [gemm_records.made(tool="te-benchmark"), gemm_records.main_grads(gemm_records.made())]
        assert throughput.view([], Evidence(others)).gemms == []

    def test_the_json_report_has_the_sums_of_the_command(self, report):
        [found] = json.loads(RENDERERS[".json"](report))["throughput"]["gemm_sums"]
        [own] = json.loads(gemms.as_json([gemm_records.made()]))
        place = ("recipe", "model", "micro_batch", "sequence", "sums")
        assert found == {"content": "gemms-31x512"} | {key: own[key] for key in place}
        assert [(s["mode"], s["gemm"]) for s in found["sums"]][4:8] == [
            ("training", g) for g in ("all", "fprop", "dgrad", "wgrad")
        ]

    def test_a_sum_that_lacks_a_gemm_is_none_and_too_few_pairs_have_no_sums(self):
        lost = gemm_records.changed(
            gemm_records.made(), "qkv fprop kernel", failed="out of memory", bf16_seconds=[], recipe_seconds=[]
        )
        few = gemm_records.changed(
            gemm_records.made(), "qkv fprop kernel", bf16_seconds=[1.0] * 5, recipe_seconds=[1.0] * 5
        )
        [found] = throughput.view([], Evidence([lost, few])).gemm_sums
        assert (found.sums[0].failed, found.sums[0].ratio) == ("qkv fprop: out of memory", None)

    def test_the_sums_of_the_page_are_those_of_the_set(self):
        """docs/gemms.md: ao-rowwise with its casts on an H100."""
        records = sets.load([ROOT / "golden" / "records" / "gemms.zip"])
        [found] = [s for s in throughput.view([], Evidence(records)).gemm_sums if s.recipe == "ao-rowwise"]
        training = {
            s.gemm: (some(s.ratio), some(s.low), some(s.high)) for s in found.sums if s.mode == GemmMode.TRAINING
        }
        texts = ["{:.2f}x [{:.2f}, {:.2f}]".format(*training[g]) for g in ("fprop", "dgrad", "wgrad")]
        page = (ROOT / "docs" / "gemms.md").read_text()
        assert [text for text in texts if text not in page] == []

    def test_the_roofline_has_measured_limits(self, report):
        drawn = throughput_figures.roofline(report.throughput.gemms, some(report.throughput.roofs))
        peak, bandwidth = drawn.data[-2:]
        assert set(peak["y"]) == {gemm_records.PEAK / 1e12}
        assert bandwidth["y"][1] / bandwidth["x"][1] == pytest.approx(gpu.BANDWIDTH / 1e12)
        assert bandwidth["y"][1] == pytest.approx(2 * gemm_records.PEAK / 1e12)
        assert [t["name"] for t in drawn.data[:-2]] == ["bf16", "te-current"]
        assert [m.label for m in drawn.modes] == ["GEMM alone", "With its casts"]
        assert all(len(m.traces["x"]) == len(drawn.data) for m in drawn.modes)

    def test_bf16_stands_once_for_each_gemm(self, report):
        other = [p.model_copy(update={"recipe": "te-block"}) for p in report.throughput.gemms]
        drawn = throughput_figures.roofline([*report.throughput.gemms, *other], some(report.throughput.roofs))
        counts = {t["name"]: len(t["x"]) for t in drawn.data[:-2]}
        assert counts == {"bf16": 12, "te-current": 12, "te-block": 12}

    def test_the_speed_up_by_shape_has_both_ways(self, report):
        drawn = throughput_figures.by_shape(report.throughput.gemms)
        alone, casts = (m.traces["y"][0] for m in drawn.modes)
        assert min(alone) == pytest.approx(1.9, rel=0.01) and max(casts) == pytest.approx(1.6, rel=0.01)


class TestSizes:
    def test_the_size_is_the_name_the_parameters_or_the_flops(self):
        speed = reports.speed("llama3-8b", "te-current")
        sizes = [throughput._billions(v, Evidence([timing()])) for v in (speed, reports.speed("tiny", "te-current"))]
        assert sizes == [8.0, None]
        other = speed.model_copy(update={"cell": CELL})
        assert throughput._billions(other, Evidence([timing()])) == pytest.approx(1.0)

    def test_published_points_stand_beside_ours(self, report):
        published = [s for s in report.throughput.sizes if s.source]
        assert {(s.billions, s.ratio) for s in published if "NeMo" in s.source} >= {(70.0, 1.43), (405.0, 1.53)}
        assert any("IBM" in s.source and (s.billions, s.ratio) == (1.8, 1.18) for s in published)
        [ours] = [s for s in report.throughput.sizes if not s.source]
        assert (ours.low, ours.ratio, ours.high) == pytest.approx((1.29, 1.31, 1.33))

    def test_ours_have_intervals_and_theirs_none(self):
        points = [
            SizePoint(label="a", model="8b", source="", billions=8, ratio=1.4, low=1.38, high=1.43),
            SizePoint(label="b (x)", model="8b", source="x", billions=8, ratio=1.28),
        ]
        own, theirs = throughput_figures.by_size(points).data
        assert own["error_y"]["array"] == [0.03] and own["error_y"]["arrayminus"] == [0.02]
        assert "error_y" not in theirs and theirs["marker"]["symbol"] == "diamond-open"

    def test_a_claim_gives_sizes_as_numbers(self):
        fields = {
            "source": "them",
            "url": "https://a.b",
            "recipe": ["te-current"],
            "metric": "speed-up",
            "model": "m",
            "hardware": "h",
        }
        more = {"published": "1.2x", "differs": "everything differs"}
        assert Claim(**fields, **more, by_size={"1.8": 1.2}).by_size == {"1.8": 1.2}  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="by_size"):
            Claim(**fields, **more, by_size={"big": 1.2})  # type: ignore[arg-type]


class TestSplit:
    def test_both_sides_are_bars_of_categories(self, report):
        bf16, recipe = report.throughput.splits
        assert bf16.milliseconds == pytest.approx({"gemm": 6.0, "attention": 3.0, "idle": 1.0})
        assert recipe.milliseconds == pytest.approx({"gemm": 3.0, "quantize": 2.0, "attention": 3.0})
        drawn = throughput_figures.split(report.throughput.splits)
        shares = {t["name"]: t["x"] for t in drawn.data}
        assert shares == {"gemm": [60.0, 37.5], "attention": [30.0, 37.5], "idle": [10.0, 0.0], "quantize": [0.0, 25.0]}
        assert drawn.modes[1].traces["x"][0] == [6.0, 3.0]


class TestWorth:
    def test_a_gap_eats_part_of_the_speed_up(self):
        verdicts, given = reports.session(recipes=("te-current",), speeds=True, gaps={("te-current", "tiny"): 0.004})
        records = [steep(r) if isinstance(r, Trajectory) else r for r in given.records]
        [row] = throughput.view(verdicts, Evidence(records)).worths
        later, worth = some(row.later), some(row.worth)
        assert later[0] < later[1] < later[2] and later[1] > 0
        assert worth[1] == pytest.approx(1.31 / (1 + later[1])) and worth[0] < worth[1] < worth[2] and worth[1] < 1.31

    def test_the_corpus_of_the_step_does_not_matter(self, report):
        [row] = report.throughput.worths
        assert row.worth is not None or row.why == "BF16's loss is flat in the tail, or not on record"
        assert row.label == "te-current native"

    def test_without_a_loss_it_says_so(self):
        [row] = throughput.view([reports.speed("tiny", "te-current")], Evidence()).worths
        assert (row.worth, row.why) == (None, "no loss gap of this cell on record")

    def test_energy_per_token(self, report):
        """175 W for 0.4 s and for 0.32 s make 70 J and 56 J for 10 steps of 1,000 tokens."""
        [row] = report.throughput.worths
        assert row.joules == pytest.approx((7.0, 5.6))

    @pytest.mark.parametrize("watts", [[], [700.0]])
    def test_without_both_powers_there_is_none(self, watts):
        record = timing(watch=CALM.model_copy(update={"watts": watts}))
        assert worths.joules(record) is None


def test_everything_reaches_the_page(report):
    page = RENDERERS[".html"](report)
    for name in ("roofline", "gemm-shapes", "model-sizes", "time-split"):
        assert f'id="{name}"' in page
    assert "5.6 (7)" in page
    assert "| te-current native | tiny | 1.310 |" in RENDERERS[".md"](report)
    for figure in figures.all_of(report):
        json.dumps(figure.model_dump(), allow_nan=False)


def test_a_name_cannot_change_a_plot():
    point = GemmPoint(
        recipe="<b>x", model="m", place="p", mode="kernel", gflops=1, intensity=(1, 2), tflops=(3, 4), ratio=1.2
    )
    drawn = throughput_figures.by_shape([point])
    assert "<b>" not in json.dumps(drawn.model_dump())


def test_a_block_is_no_step(report):
    """A block's verdict has no worth: no loss belongs to it."""
    block = reports.speed("llama3-8b", "te-current").model_copy(update={"check": "block throughput"})
    assert isinstance(block, Verdict) and throughput.view([block], Evidence()).worths == []
