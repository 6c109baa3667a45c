"""What a report draws: judged gaps and bands, speeds, rooflines, sizes and worth."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import gemm_records
import pytest
import reports
from fp8parity.judging.quantities import step_band
from fp8parity.judging.table import Place
from fp8parity.judging.verdict import Verdict
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.records.schema import Throughput, Trajectory
from fp8parity.records.times import COPY, DeviceProfile, PartTime
from fp8parity.report import RENDERERS, timed, timings
from fp8parity.report.evidence import Evidence
from fp8parity.report.plots import BETTER, WORSE, Trace
from fp8parity.report.sections import gemms as gemm_plots
from fp8parity.report.summary import Report
from narrowed import some
from timings import CALM


def with_loss(v: Verdict, **changes: object) -> Verdict:
    """The verdict with another loss detail."""
    return v.model_copy(update={"detail": some(v.loss).model_copy(update=changes)})


def of(plot, name: str) -> list[Trace]:
    """The traces of a name."""
    return [t for t in plot.data if t.get("name") == name]


def test_no_number_of_a_plot_is_lost_to_json(faulty):
    for plot in reports.plots(faulty).values():
        json.dumps([plot.data, plot.layout], allow_nan=False)


class TestLosses:
    def test_gaps_are_not_computed_from_records(self):
        """Planted: a band with gaps that no record holds."""
        verdicts, given = reports.session(recipes=("te-current",))
        rows = step_band(next(v.rows for v in verdicts if v.loss and v.cell.recipe == "te-current"))
        one = [replace(r, seed=7, value=0.5, status=Place.WORSE) for r in rows if r.seed == 0]
        made = Report([v.model_copy(update={"rows": one}) if v.loss else v for v in verdicts], {}, [], "m", given)
        plot = reports.plots(made)["paired-0"]
        assert of(plot, "te-current native")[0]["y"] == [50.0] * 16
        assert of(plot, "band")[0]["y"] == pytest.approx([100 * r.half for r in one], rel=1e-3)
        fields = [row[-1] for row in reports.texts(reports.tables(made)["Losses of tiny"])]
        assert all(field.endswith("(+50.00%, out)") for field in fields)

    def test_a_curve_ends_where_a_seed_does(self, faulty):
        [curve] = of(reports.plots(faulty)["loss-1"], "te-nvfp4 native")
        assert [y is None for y in curve["y"]] == [False] * 100 + [True] * 60
        assert of(reports.plots(faulty)["paired-1"], "te-nvfp4 native") == [], "nothing of it was judged by a band"
        assert reports.texts(reports.tables(faulty)["Losses of mini"])[15][-1] == "-"

    def test_a_seed_outside_its_band_is_marked(self):
        made = reports.report(recipes=("te-current",), gaps={("te-current", "tiny"): 0.06})
        fields = [row[-1] for row in reports.texts(reports.tables(made)["Losses of tiny"])]
        assert [i for i, text in enumerate(fields) if ", out)" in text] == list(range(8, 16))
        assert all(re.fullmatch(r"3\.\d{4} \(\+(5\.9|6\.0)\d%, out\)", text) for text in fields[8:])
        assert "left the band in steps 80 to 89" in made.sentence


class TestGaps:
    def test_points_have_their_interval_color_and_margin(self, faulty):
        plot = reports.plots(faulty)["gap-1"]
        [failing] = of(plot, "fail")
        row = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert failing["y"] == ["te-current native"]
        assert failing["x"] == pytest.approx([100 * row.mean], rel=1e-3)
        assert failing["error_x"]["array"] == pytest.approx([100 * (row.high - row.mean)], rel=1e-3)
        assert [(s["x0"], s["x1"]) for s in plot.layout["shapes"]] == [(-0.5, 0.5)] * 3
        assert all(t["error_x"]["color"] == t["marker"]["color"] for t in plot.data)


class TestOverview:
    @pytest.fixture
    def traded(self) -> Report:
        """te-current is above its margin on mini. Both recipes have a speed on mini alone."""
        recipes = ("te-current", "te-block")
        verdicts, given = reports.session(
            recipes=recipes, models=("tiny", "mini"), gaps={("te-current", "mini"): 0.0081}
        )
        speeds = [reports.speed("mini", "te-current", 1.2), reports.speed("mini", "te-block", 0.9)]
        return Report([*verdicts, *speeds], {}, [], "m", given)

    def test_cells_without_a_speed_are_counted_and_red_ones_named(self, traded):
        assert reports.plots(traded)["overview"].note == (
            "Not in this picture: 2 cells with a loss gap and no measured speed, all green."
        )
        verdicts, given = reports.session(
            recipes=("te-current",), models=("tiny", "mini"), gaps={("te-current", "tiny"): 0.0081}
        )
        made = Report([*verdicts, reports.speed("mini", "te-current")], {}, [], "m", given)
        assert "among them red: te-current native on tiny (+0.8" in reports.plots(made)["overview"].note


class TestSpeed:
    def test_panels_of_a_kind_share_one_axis(self):
        speeds = [reports.speed(m, r, x) for m, r, x in [("mini", "a", 1.3), ("mini", "b", 0.7), ("1b", "a", 1.1)]]
        plots = reports.plots(Report(speeds, {}, [], "m"))
        assert plots["speed-0"].layout["xaxis"] == plots["speed-1"].layout["xaxis"]
        low, high = plots["speed-0"].layout["xaxis"]["range"]
        assert low < 0.68 and high > 1.32
        bars = plots["speed-0"].data[0]
        assert (bars["base"], bars["x"], bars["text"]) == (1, [0.3, -0.3], ["1.30x", "0.70x"])
        assert bars["marker"]["color"] == [BETTER, WORSE] and bars["error_x"]["array"] == [0.02, 0.02]
        assert plots["memory-0"].data[0]["marker"]["color"] == [WORSE, WORSE], "more memory is worse"


class TestHeatMaps:
    def test_all_maps_share_one_scale_and_show_judged_ranges(self, faulty):
        maps = [p for name, p in reports.plots(faulty).items() if name.startswith("snr-")]
        assert len(maps) == 4 and len({(p.data[0]["zmin"], p.data[0]["zmax"]) for p in maps}) == 1
        hovered = maps[0].data[0]["customdata"][0]
        assert all(re.fullmatch(r", allowed \d+(\.\d+)? to (\d+(\.\d+)?|inf)", text) for text in hovered)
        assert 38 <= maps[0].views[1].traces["z"][0][0][0] <= 42, "bf16 in dgrad"


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


BANDWIDTH = 3e12


def device() -> DeviceProfile:
    copy = PartTime(part=COPY, form="eager", sizes={"bytes": 3}, seconds=1e-12, low=1e-12, high=1e-12)
    where = reports.provenance()
    return DeviceProfile(cell=CELL, memory=1, peak_flops=1.0, times=[copy], provenance=where, session="s")


@pytest.fixture(scope="module")
def report() -> Report:
    """A session with losses and speeds of te-current on tiny, its step, GEMMs and the GPU's profile."""
    verdicts, given = reports.session(recipes=("te-current",), speeds=True)
    speeds = [v.model_copy(update={"cell": CELL}) if v.speed else v for v in verdicts]
    records = [*given.records, timing(), gemm_records.made(), device()]
    return Report(speeds, {}, [], "m", Evidence(records, given.goldens, given.policy))


class TestGemms:
    def test_the_json_report_has_the_sums_of_the_command(self, report):
        [found] = json.loads(RENDERERS[".json"](report))["throughput"]["gemm_sums"]
        [own] = json.loads(timings.GEMM_RENDERERS["json"]([gemm_records.made()]))
        place = ("recipe", "model", "micro_batch", "sequence", "sums")
        assert found == {"content": "gemms-31x512"} | {key: own[key] for key in place}

    def test_the_roofline_has_measured_limits_and_bf16_once(self, report):
        drawn = reports.plots(report)["roofline"]
        peak, bandwidth = drawn.data[-2:]
        assert set(peak["y"]) == {gemm_records.PEAK / 1e12}
        assert bandwidth["y"][1] / bandwidth["x"][1] == pytest.approx(BANDWIDTH / 1e12)
        assert bandwidth["y"][1] == pytest.approx(2 * gemm_records.PEAK / 1e12)
        assert [v.label for v in drawn.views] == ["GEMM alone", "With its casts"]
        assert all(len(v.traces["x"]) == len(drawn.data) for v in drawn.views)
        points = gemm_plots.gemm_points([gemm_records.made()])
        both = gemm_plots.roofline([*points, *(p._replace(recipe="te-block") for p in points)], "gpu", 800, None)
        assert {t["name"]: len(t["x"]) for t in both.data[:-1]} == {"bf16": 12, "te-current": 12, "te-block": 12}


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
    assert [name for name in ("roofline", "gemm-shapes") if f'id="{name}"' not in page] == []
    assert "| te-current native | tiny | 1.310 [1.290, 1.330] |" in RENDERERS[".md"](report)
