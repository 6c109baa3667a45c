"""The first picture of a report, and the panels of speed and memory."""

from __future__ import annotations

import pytest
import reports
from fp8parity.judging.verdict import SpeedDetail
from fp8parity.report import overview, speed_plots, view
from fp8parity.report.plots import RED


@pytest.fixture(scope="module")
def traded():
    """te-current is above its margin on mini. Both recipes have a speed on mini alone."""
    verdicts, given = reports.session(
        recipes=("te-current", "te-block"), models=("tiny", "mini"), gaps={("te-current", "mini"): 0.0081}
    )
    speeds = [reports.speed("mini", "te-current", 1.2), reports.speed("mini", "te-block", 0.9)]
    return view.build([*verdicts, *speeds], {}, [], "m", given)


class TestOverview:
    def test_a_dot_is_a_recipe_and_size_at_its_speed_and_its_gap_in_margins(self, traded):
        [figure] = overview.overview(traded)
        dots = {t["name"]: t for t in figure.data if t["x"] != [None]}
        assert {name: t["x"] for name, t in dots.items()} == {"te-block native": [0.9], "te-current native": [1.2]}
        row = next(r for r in traded.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert dots["te-current native"]["y"] == [pytest.approx(row.mean / 0.005, rel=1e-3)]
        assert 1.5 < row.mean / 0.005 < 1.7

    def test_what_is_red_has_a_red_edge(self, traded):
        [figure] = overview.overview(traded)
        edges = {t["name"]: t["marker"]["line"] for t in figure.data if t["x"] != [None]}
        assert edges["te-current native"] == {"color": [RED], "width": [3]}
        assert edges["te-block native"]["width"] == [0]

    def test_the_margins_are_drawn_and_inside_the_picture(self, traded):
        [figure] = overview.overview(traded)
        assert [(s["y0"], s["y1"]) for s in figure.layout["shapes"] if s["type"] == "rect"] == [(-1, 1)]
        low, high = figure.layout["yaxis"]["range"]
        assert low < -1 and 1.6 < high < 2.6

    def test_the_legend_names_each_recipe_and_each_size_once(self, traded):
        [figure] = overview.overview(traded)
        assert [t["name"] for t in figure.data if t["showlegend"]] == ["te-block native", "te-current native", "mini"]

    def test_cells_without_a_speed_are_counted_and_the_red_ones_named(self, traded):
        [figure] = overview.overview(traded)
        assert figure.note == "Not in this picture: 2 cells with a loss gap and no measured speed, all green."
        verdicts, given = reports.session(
            recipes=("te-current",), models=("tiny", "mini"), gaps={("te-current", "tiny"): 0.0081}
        )
        made = view.build([*verdicts, reports.speed("mini", "te-current")], {}, [], "m", given)
        [figure] = overview.overview(made)
        assert (
            "1 cell with a loss gap and no measured speed, among them red: te-current native on tiny (+0.8"
            in figure.note
        )

    def test_without_speeds_it_shows_the_gaps_of_all_recipes(self):
        [figure] = overview.overview(reports.report(recipes=("te-current", "te-block"), models=("tiny", "mini")))
        assert [t["name"] for t in figure.data] == ["tiny", "mini"]
        assert [len(t["x"]) for t in figure.data] == [3, 3]
        assert figure.layout["yaxis"]["ticktext"] == ["bf16", "te-current native", "te-block native"]
        assert all(abs(x) < 1 for t in figure.data for x in t["x"])

    def test_a_huge_gap_stands_at_the_edge_as_an_arrow(self):
        [figure] = overview.overview(reports.report(recipes=("te-current",), gaps={("te-current", "tiny"): 0.5}))
        assert figure.data[0]["x"][1] == overview.REACH
        assert figure.data[0]["marker"]["symbol"][1] == "triangle-right"
        assert figure.layout["xaxis"]["range"][1] > overview.REACH

    def test_without_gaps_there_is_no_picture(self):
        assert overview.overview(view.build([reports.speed("mini", "te-current")], {}, [], "m")) == []


class TestSpeed:
    def test_one_panel_a_size_and_one_axis_for_all(self, traded):
        made = view.build(
            [reports.speed(m, r, x) for m, r, x in [("mini", "a", 1.3), ("mini", "b", 0.7), ("1b", "a", 1.1)]],
            {},
            [],
            "m",
        )
        found = speed_plots.panels(made.speeds)
        assert [f.name for f in found] == ["speed-0", "speed-1", "memory-0", "memory-1"]
        assert found[0].layout["xaxis"]["range"] == found[1].layout["xaxis"]["range"]
        low, high = found[0].layout["xaxis"]["range"]
        assert low < 0.68 and high > 1.32
        assert found[0].layout["xaxis"]["side"] == "top"

    def test_faster_and_slower_have_two_colors_and_their_numbers(self, traded):
        bars = speed_plots.panels(traded.speeds)[0].data[0]
        assert bars["y"] == ["te-current native", "te-block native"]
        assert (bars["base"], bars["x"], bars["text"]) == (1, [0.2, -0.1], ["1.20x", "0.90x"])
        assert bars["marker"]["color"] == [speed_plots.BETTER, speed_plots.WORSE]
        assert bars["error_x"]["array"] == [0.02, 0.02]

    def test_more_memory_is_worse(self, traded):
        bars = speed_plots.panels(traded.speeds)[1].data[0]
        assert bars["text"] == ["1.05x", "1.05x"]
        assert bars["marker"]["color"] == [speed_plots.WORSE, speed_plots.WORSE]

    def test_a_cpu_without_a_reading_has_no_bar(self):
        made = reports.speed("mini", "te-current")
        assert isinstance(made.detail, SpeedDetail)
        bare = made.model_copy(update={"detail": made.detail.model_copy(update={"memory": 0, "bf16_memory": 0})})
        assert speed_plots.panels(view.build([bare], {}, [], "m").speeds)[1].data[0]["x"] == [0]

    def test_without_speeds_there_is_none(self):
        assert speed_plots.panels([]) == []
