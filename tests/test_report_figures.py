"""What a report draws: curves with their bands, gap intervals, heat maps."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
import reports
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Measurement
from fp8parity.report import RENDERERS, figures, snr, view
from fp8parity.report.evidence import Evidence
from narrowed import some


def with_loss(v: Verdict, **changes: object) -> Verdict:
    """The verdict with another loss detail."""
    return v.model_copy(update={"detail": some(v.loss).model_copy(update=changes)})


class TestCurves:
    def test_the_band_is_the_one_that_was_judged(self, faulty):
        banded = [v for v in faulty.verdicts if v.loss and v.loss.band]
        assert banded
        for v, group in ((v, c) for v in banded for c in faulty.curves if c.model == v.cell.model):
            curve = next(c for c in group.curves if c.label == v.cell.label)
            assert group.bands[curve.band].half == pytest.approx(v.loss.band.half, rel=1e-4)

    def test_a_curve_ends_where_a_seed_does(self, faulty):
        curve = next(c for c in faulty.curves[1].curves if c.label == "te-nvfp4 native")
        assert curve.non_finite == "seed 0 non-finite at step 100"
        assert [x is None for x in curve.loss] == [False] * 100 + [True] * 60
        assert [len(s.gaps) for s in curve.gaps] == [20, 20, 20]
        assert curve.gaps[0].gaps[12:] == [None] * 8
        assert None not in curve.gaps[1].gaps

    def test_a_shift_is_seen_where_it_begins(self, faulty):
        curve = next(c for c in faulty.curves[1].curves if c.label == "te-current native")
        for seed in curve.gaps:
            assert all(abs(g) < 0.001 for g in seed.gaps[:10])
            assert all(0.0071 < g < 0.0091 for g in seed.gaps[10:])

    def test_a_spike_leaves_the_band(self):
        made = reports.report(recipes=("te-current",), gaps={("te-current", "tiny"): 0.06})
        curve = made.curves[0].curves[1]
        assert [s.first_out for s in curve.gaps] == [80, 80, 80]
        assert curve.out(10, made.curves[0].bands[0].half[10])
        assert len(re.findall(r'<td class="out">3\.\d{4} \(\+(5\.9|6\.0)\d%, out\)', RENDERERS[".html"](made))) == 10
        assert "left the band at step 80" in made.sentence

    def test_an_odd_first_step_stands_in_the_sentence(self):
        verdicts, given = reports.session(recipes=("te-current",))
        odd = [
            with_loss(v, odd_start="gradient norm 0.9x BF16's").model_copy(update={"status": "fail"}) if v.loss else v
            for v in verdicts
        ]
        assert "(first step: gradient norm 0.9x BF16's; gap " in view.build(odd, {}, [], "m", given).sentence

    def test_without_a_golden_there_is_no_band(self):
        verdicts, given = reports.session(recipes=("te-current",))
        bare = [with_loss(v, band=None) if v.loss else v for v in verdicts]
        made = view.build(bare, {}, [], "m", Evidence(records=given.records))
        assert (made.curves[0].golden, made.curves[0].bands) == ([], [])
        assert "there is no golden, so no band" in RENDERERS[".html"](made)


NAMES = [
    "0.attention.q_proj",
    "0.mlp.up_proj",
    "10.attention.q_proj",
    "2.attention.q_proj",
    "2.attention.o_proj",
    "2.mlp.up_proj",
]
VALUES = [
    Measurement(metric=f"{g} layer sqnr", where=w, value=i) for i, w in enumerate(NAMES) for g in ("fprop", "dgrad")
]
ALONE = [m for m in VALUES if m.metric.startswith("dgrad")]


class TestFigures:
    def test_no_two_curves_look_the_same(self):
        made = reports.report(recipes=tuple(f"te-{i}" for i in range(13)), seeds=2, steps=32)
        lines = [
            (t["line"]["color"], t["line"].get("dash"))
            for t in figures.losses(made.curves[0], 0).data
            if "color" in t.get("line", {})
        ]
        drawn = [line for line in lines if line[0] in figures.COLORS]
        assert len(drawn) == 14
        assert len(set(drawn)) == 14

    def test_an_interval_has_the_color_of_its_point(self, faulty):
        points = [t for f in figures.gaps(faulty.rows) for t in f.data]
        assert {t["marker"]["color"] for t in points} == {figures.COLORS[0], figures.COLORS[1]}
        assert all(t["error_x"]["color"] == t["marker"]["color"] for t in points)

    def test_modes_change_what_they_say(self, faulty):
        loss = figures.losses(faulty.curves[0], 0)
        whole, log, tail = loss.modes
        assert (whole.layout, log.layout) == ({}, {"yaxis.type": "log"})
        assert tail.layout["xaxis.range"] == [120, 159]
        low, high = tail.layout["yaxis.range"]
        shown = [x for c in faulty.curves[0].curves for x in c.loss[120:]]
        assert low < min(shown) < max(shown) < high < low + 0.3

    def test_a_gap_is_not_marked_for_another_check(self):
        verdicts, given = reports.session(recipes=("te-current",))
        loss = next(v for v in verdicts if v.loss and v.cell.recipe == "te-current")
        other = loss.model_copy(update={"check": "gemm", "status": "fail", "detail": None})
        made = view.build([*verdicts, other], {}, [], "m", given)
        row = next(r for r in made.rows if r.recipe == "te-current")
        assert (row.parity, row.status) == ("pass", "fail")
        assert {t["name"] for f in figures.gaps(made.rows) for t in f.data} == {"pass"}

    def test_gap_points_and_margins(self, faulty):
        mini = figures.gaps(faulty.rows)[1]
        failing = next(t for t in mini.data if t["name"] == "fail")
        row = next(r for r in faulty.rows if (r.recipe, r.model) == ("te-current", "mini"))
        assert failing["y"] == ["te-current native"]
        assert failing["x"] == pytest.approx([100 * row.mean], rel=1e-3)
        assert failing["error_x"]["array"] == pytest.approx([100 * (row.high - row.mean)], rel=1e-3)
        assert [(s["x0"], s["x1"]) for s in mini.layout["shapes"]] == [(-0.5, 0.5)] * 3

    def test_heat_by_gemm(self, faulty):
        heat = faulty.heats[0]
        figure = figures.heat(heat, 0)
        assert [m.label for m in figure.modes] == ["fprop", "dgrad"]
        assert figure.modes[1].traces["z"][0] == heat.values["dgrad"]
        assert 38 <= heat.values["dgrad"][0][heat.columns.index("bf16")] <= 42
        assert 6 <= heat.values["dgrad"][0][heat.columns.index("te-nvfp4 native")] <= 10

    def test_a_heat_map_shows_columns_with_numbers_and_layers_in_order(self):
        native, fused = reports.layers("tiny", "bf16"), reports.layers("tiny", "te-current")
        made = snr._heat(
            "t",
            "w",
            "r",
            [native.model_copy(update={"values": VALUES}), fused.model_copy(update={"values": ALONE})],
            snr.BY_LAYER,
        )
        assert made.rows == [NAMES[i] for i in (0, 1, 3, 4, 5, 2)]
        shown = {m.label: m.traces for m in figures.heat(made, 0).modes}
        unjudged = [[[""]] * 6, [["", ""]] * 6]
        assert shown["fprop"] == {"x": [["bf16"]], "z": [[[0], [1], [3], [4], [5], [2]]], "customdata": unjudged[:1]}
        assert shown["dgrad"] == {
            "x": [["bf16", "te-current native"]], "z": [[[i, i] for i in (0, 1, 3, 4, 5, 2)]], "customdata": unjudged[1:],
        }  # fmt: skip
        assert list(shown) == ["fprop", "dgrad"]

    def test_a_heat_map_of_one_gemm_shows_that_one(self):
        fused = reports.layers("tiny", "te-current").model_copy(update={"values": ALONE})
        only = figures.heat(snr._heat("t", "w", "r", [fused], snr.BY_LAYER), 0)
        assert [m.label for m in only.modes] == ["dgrad"] and only.data[0]["x"] == ["te-current native"]

    def test_numbers_that_are_all_nan_still_make_a_report(self):
        broken = reports.layers("tiny", "te-current")
        nan = [replace(m, value=math.nan) for m in broken.values]
        made = snr._heat("t", "w", "r", [broken.model_copy(update={"values": nan})], snr.BY_LAYER)
        assert made.rows == [] and not made.measured

    def test_heat_by_parameter(self, faulty):
        heat = next(h for h in faulty.heats if h.title == "tiny: by parameter")
        assert list(heat.values) == ["gradient"]
        assert "layers.0.attention.q_proj.weight" in heat.rows and "embedding.weight" in heat.rows
        assert 42 <= heat.values["gradient"][0][heat.columns.index("bf16")] <= 46

    def test_all_heat_maps_share_one_scale_and_show_judged_ranges(self, faulty):
        maps = [f for f in figures.all_of(faulty) if f.name.startswith("snr-")]
        assert len(maps) == 4
        assert len({(f.data[0]["zmin"], f.data[0]["zmax"]) for f in maps}) == 1
        hovered = maps[0].data[0]["customdata"][0]
        assert len(hovered) == len(maps[0].data[0]["x"]) == 4
        assert all(re.fullmatch(r", allowed \d+(\.\d+)? to (\d+(\.\d+)?|inf)", text) for text in hovered)
        assert all(f.layout["xaxis"]["side"] == "top" for f in maps)

    def test_a_large_heat_map_is_compressed(self):
        made = reports.layers("tiny", "te-current")
        view = snr._heat("t", "w", "layer", [made], snr.BY_LAYER)
        assert (
            len(view.rows) == 56
            and figures.heat(view, 0).height == 630
            and "texttemplate" not in figures.heat(view, 0).data[0]
        )
        few = view.model_copy(
            update={"rows": view.rows[:24], "values": {k: m[:24] for k, m in view.values.items()}, "allowed": {}}
        )
        assert figures.heat(few, 0).height == 150 + 24 * 22 and "texttemplate" in figures.heat(few, 0).data[0]

    def test_trajectories_open_close_up_on_nine_tenths_of_the_gaps_and_on_all_that_are_red(self, faulty):
        green, red = (figures.paired(c, i) for i, c in enumerate(faulty.curves))
        assert [m.label for m in green.modes] == ["Close up", "With the band", "Tail"]
        found = sorted(abs(g) for c in faulty.curves[0].curves for s in c.gaps for g in s.gaps)
        assert green.modes[0].layout["yaxis.range"][1] == pytest.approx(
            120 * found[int(0.9 * (len(found) - 1))], rel=1e-3
        )
        shift = max(
            abs(g) for c in faulty.curves[1].curves if c.label == "te-current native" for s in c.gaps for g in s.gaps
        )
        assert red.modes[0].layout["yaxis.range"][1] >= 120 * shift * 0.999

    def test_no_number_is_lost_to_json(self, faulty):
        for figure in figures.all_of(faulty):
            json.dumps(figure.model_dump(), allow_nan=False)
