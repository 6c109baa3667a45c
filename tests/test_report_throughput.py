"""What a report shows of throughput in depth: roofline, shapes, model sizes, the time split, worth and energy."""

from __future__ import annotations

import json
import math

import gemm_records
import made_up_gpu as gpu
import pytest
import reports
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.gemms import GemmMode
from fp8parity.records.schema import Throughput, TimeSplit, Trajectory
from fp8parity.records.times import Category, Split
from fp8parity.report import RENDERERS, timed, timings
from fp8parity.report.sections import gemms as gemm_plots
from fp8parity.report.sections.speed import size_points
from fp8parity.report.summary import Evidence, Report
from narrowed import some
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
def report() -> Report:
    """A session with losses and speeds of te-current on tiny, its step, GEMMs, time split and the GPU's profile."""
    verdicts, given = reports.session(recipes=("te-current",), speeds=True)
    speeds = [v.model_copy(update={"cell": CELL}) if v.speed else v for v in verdicts]
    records = [*given.records, timing(), split(), gemm_records.made(), gpu.profile()]
    return Report(speeds, {}, [], "m", Evidence(records, given.goldens, given.policy))


def shown(*records: object) -> dict[str, list[list[str]]]:
    """The tables of a report on these records alone."""
    made = Report([], {}, [], "m", Evidence(records))  # type: ignore[arg-type]
    return {title: reports.texts(table) for title, table in reports.tables(made).items()}


class TestGemms:
    def test_a_gemm_has_its_intensity_and_rates(self):
        record = gemm_records.made()
        point = next(
            p
            for p in gemm_plots.gemm_points([record])
            if (p.result.linear, p.result.gemm, p.result.mode) == ("qkv", "fprop", GemmMode.KERNEL)
        )
        m, n, k = 15_872, 12_288, 4096
        assert point.gflops == pytest.approx(2 * m * n * k / 1e9)
        assert point.intensity == pytest.approx(
            (2 * m * n * k / (2 * (m * k + n * k + m * n)), 2 * m * n * k / (m * k + n * k + 2 * m * n))
        )
        assert point.tflops[0] == pytest.approx(640, rel=0.01) and point.result.ratio == pytest.approx(1.9, rel=0.01)

    def test_the_json_report_has_the_sums_of_the_command(self, report):
        [found] = json.loads(RENDERERS[".json"](report))["throughput"]["gemm_sums"]
        [own] = json.loads(timings.GEMM_RENDERERS["json"]([gemm_records.made()]))
        place = ("recipe", "model", "micro_batch", "sequence", "sums")
        assert found == {"content": "gemms-31x512"} | {key: own[key] for key in place}

    def test_the_roofline_has_measured_limits_and_bf16_once(self, report):
        drawn = reports.plots(report)["roofline"]
        peak, bandwidth = drawn.data[-2:]
        assert set(peak["y"]) == {gemm_records.PEAK / 1e12}
        assert bandwidth["y"][1] / bandwidth["x"][1] == pytest.approx(gpu.BANDWIDTH / 1e12)
        assert bandwidth["y"][1] == pytest.approx(2 * gemm_records.PEAK / 1e12)
        assert [v.label for v in drawn.views] == ["GEMM alone", "With its casts"]
        assert all(len(v.traces["x"]) == len(drawn.data) for v in drawn.views)
        points = gemm_plots.gemm_points([gemm_records.made()])
        both = gemm_plots.roofline([*points, *(p._replace(recipe="te-block") for p in points)], "gpu", 800, None)
        assert {t["name"]: len(t["x"]) for t in both.data[:-1]} == {"bf16": 12, "te-current": 12, "te-block": 12}

    def test_published_points_are_next_to_ours_without_an_interval(self, report):
        points = size_points(report.verdicts, report.evidence)
        published = [p for p in points if p.source]
        assert {(p.billions, p.ratio) for p in published if "NeMo" in p.source} >= {(70.0, 1.43), (405.0, 1.53)}
        [ours] = [p for p in points if not p.source]
        assert ours.ends == pytest.approx((1.29, 1.31, 1.33))
        traces = reports.plots(
            Report([*report.found, reports.speed("llama3-8b", "te-current")], {}, [], "m", report.evidence)
        )
        data = traces["model-sizes"].data
        assert ["error_y" in t for t in data] == [t["marker"]["symbol"] == "circle" for t in data]


def test_both_sides_of_a_split_are_bars_of_categories(report):
    drawn = reports.plots(report)["time-split"]
    shares = {t["name"]: t["x"] for t in drawn.data}
    assert shares == {"gemm": [60.0, 37.5], "attention": [30.0, 37.5], "idle": [10.0, 0.0], "quantize": [0.0, 25.0]}
    assert drawn.views[1].traces["x"][0] == [6.0, 3.0]
    rows = reports.texts(reports.tables(report)["Where the time goes"])
    assert [row[3] for row in rows] == [
        "gemm 6.000, attention 3.000, idle 1.000",
        "gemm 3.000, quantize 2.000, attention 3.000",
    ]


class TestWorth:
    def test_a_gap_takes_part_of_the_speed_up(self):
        verdicts, given = reports.session(recipes=("te-current",), speeds=True, gaps={("te-current", "tiny"): 0.004})
        records = [steep(r) if isinstance(r, Trajectory) else r for r in given.records]
        [row] = timed.worths(verdicts, Evidence(records)).values()
        later, worth = some(row.later), some(row.worth)
        assert later[0] < later[1] < later[2] and later[1] > 0
        assert worth[1] == pytest.approx(1.31 / (1 + later[1])) and worth[0] < worth[1] < worth[2] and worth[1] < 1.31

    def test_energy_per_token(self, report):
        """175 W for 0.4 s and for 0.32 s make 70 J and 56 J for 10 steps of 1,000 tokens."""
        assert timed.joules(timing()) == pytest.approx((7.0, 5.6))
        assert reports.texts(reports.tables(report)["Worth at equal loss"])[0][-1] == "5.6 (7)"
        for watts in ([], [700.0]):
            assert timed.joules(timing(watch=CALM.model_copy(update={"watts": watts}))) is None


def test_everything_reaches_the_page(report):
    page = RENDERERS[".html"](report)
    assert [name for name in ("roofline", "gemm-shapes", "time-split") if f'id="{name}"' not in page] == []
    assert "| te-current native | tiny | 1.310 [1.290, 1.330] |" in RENDERERS[".md"](report)
