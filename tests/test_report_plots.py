"""What a report draws: judged gaps and bands, curves, heat maps, speed and memory, and the first plot."""

from __future__ import annotations

import json
import re

import pytest
import reports
from fp8parity.judging.verdict import Verdict
from fp8parity.report.plots import BETTER, WORSE, Trace
from fp8parity.report.sections.gaps import REACH
from fp8parity.report.summary import Report
from narrowed import some


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
    def test_gaps_and_bands_are_those_that_were_judged(self, faulty):
        judged = next(v.loss.band for v in faulty.verdicts if v.loss and v.cell.id == "te-current-mini-native")
        plot = reports.plots(faulty)["paired-1"]
        drawn = of(plot, "te-current native")
        assert [t["y"] for t in drawn] == [
            pytest.approx([100 * g for g in gaps], rel=1e-3) for gaps in judged.gaps.values()
        ]
        assert of(plot, "band")[0]["y"] == pytest.approx([100 * h for h in judged.half], rel=1e-3)
        assert [t["showlegend"] for t in drawn] == [True, False, False]

    def test_gaps_are_not_computed_from_records(self):
        """Planted: a band with gaps that no record holds."""
        verdicts, given = reports.session(recipes=("te-current",))
        band = some(next(v.loss for v in verdicts if v.loss and v.cell.recipe == "te-current")).band
        other = some(band).model_copy(update={"gaps": {7: [0.5] * len(some(band).half)}})
        made = Report([with_loss(v, band=other) if v.loss else v for v in verdicts], {}, [], "m", given)
        assert of(reports.plots(made)["paired-0"], "te-current native")[0]["y"] == [50.0] * 20
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
        assert [i for i, text in enumerate(fields) if ", out)" in text] == list(range(10, 20))
        assert all(re.fullmatch(r"3\.\d{4} \(\+(5\.9|6\.0)\d%, out\)", text) for text in fields[10:])
        assert "left the band at step 80" in made.sentence

    def test_views_change_scale_and_range(self, faulty):
        plots = reports.plots(faulty)
        whole, log, tail = plots["loss-0"].views
        assert (whole.layout, log.layout) == ({}, {"yaxis.type": "log"})
        assert tail.layout["xaxis.range"] == [120, 159]
        close = [some(plots[f"paired-{i}"].views)[0].layout["yaxis.range"][1] for i in (0, 1)]
        assert close[0] < 0.2 and close[1] > 0.8, "every gap of a red curve is shown"


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

    def test_without_speeds_it_shows_gaps_and_a_huge_one_as_an_arrow(self):
        plot = reports.plots(
            reports.report(recipes=("te-current",), models=("tiny", "mini"), gaps={("te-current", "tiny"): 0.5})
        )["overview"]
        assert [t["name"] for t in plot.data] == ["tiny", "mini"]
        assert plot.layout["yaxis"]["ticktext"] == ["bf16", "te-current native"]
        assert (plot.data[0]["x"][1], plot.data[0]["marker"]["symbol"][1]) == (REACH, "triangle-right")


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
