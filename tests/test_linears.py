"""Each linear alone: the blocks that were timed with a filter beside their split, and what a report shows of both."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fp8parity.judging import module_filter, speed
from fp8parity.judging.module_filter import filtered
from fp8parity.records.schema import Throughput, TimeSplit
from fp8parity.report import RENDERERS, throughput, view
from fp8parity.report.evidence import Evidence
from test_block_command import SHAPE
from test_split import KV, SAME, Q
from test_split import made as split_of
from timings import made as timed

WITHOUT = "without k_proj v_proj"


def block(ratio: float, variant: str, **changes: Any) -> Throughput:
    return timed(ratio, variant=variant, **{"block": SHAPE} | changes)


def split(variant: str = "", **changes: Any) -> TimeSplit:
    return split_of(Q, KV, SAME).model_copy(update={"block": SHAPE, "variant": variant} | changes)


PLAIN, FILTERED = block(1.2, "eager"), block(1.25, f"eager {WITHOUT}")


class TestFiltered:
    def test_the_gain_is_the_ratio_of_both_speed_ups_and_errors_add_in_squares(self):
        [found] = filtered(split("eager"), [PLAIN, FILTERED])
        one, two = speed.measured(PLAIN), speed.measured(FILTERED)
        low, middle, high = found.gain
        assert middle == pytest.approx(1.25 / 1.2)
        assert math.log(middle / low) == pytest.approx(
            math.hypot(math.log(two.ratio / two.low), math.log(one.high / one.ratio))
        )
        assert math.log(high / middle) == pytest.approx(
            math.hypot(math.log(two.high / two.ratio), math.log(one.ratio / one.low))
        )
        assert low < middle < high
        assert found.variant == f"eager {WITHOUT}"

    @pytest.mark.parametrize(
        ("of", "records"),
        [
            (split(""), [PLAIN, FILTERED]),
            (split("eager"), [FILTERED]),
            (split("eager"), [PLAIN, block(1.1, "eager 1x32")]),
            (split("eager"), [PLAIN, block(1.1, f"1x32 {WITHOUT}")]),
            (split("eager"), [block(1.2, "eager", block=SHAPE.model_copy(update={"sequence": 8})), FILTERED]),
            (split("eager", block=SHAPE.model_copy(update={"sequence": 8})), [PLAIN, FILTERED]),
            (split("eager", cell=PLAIN.cell.model_copy(update={"recipe": "te-block"})), [PLAIN, FILTERED]),
            (split("eager"), [PLAIN, FILTERED.model_copy(update={"recipe_memory": 0})]),
            (split("", block=None), [block(1.2, "", block=None), block(1.25, WITHOUT, block=None)]),
        ],
        ids=[
            "setting",
            "alone",
            "no filter",
            "other setting",
            "other shapes",
            "other block",
            "other cell",
            "unusable",
            "a step",
        ],
    )
    def test_what_differs_in_more_than_the_filter_does_not_count(self, of, records):
        assert filtered(of, records) == []

    def test_a_split_step_takes_any_block_of_its_model(self):
        whole = split("", block=None, layers=4)
        assert [f.variant for f in filtered(whole, [PLAIN, FILTERED])] == [FILTERED.variant]

    def test_a_variant_is_named_by_its_filter(self):
        assert module_filter.variant(["k_proj", "v_proj"]) == WITHOUT and module_filter.variant([]) == ""


def test_a_linear_with_too_few_pairs_is_left_out():
    """A hand-made record must not stop a report."""
    few = KV.model_copy(update={"bf16_seconds": [1.0] * 5, "recipe_seconds": [2.0] * 5})
    least = KV.model_copy(update={"bf16_seconds": [1.0] * 6, "recipe_seconds": [2.0] * 6})
    assert [s.linear for s in module_filter.speeds(split_of(few, least))] == [least]
    assert throughput.view([], Evidence([split_of(few)])).linears == []


@pytest.fixture(scope="module")
def report() -> view.Report:
    return view.build([], {}, [], "m", Evidence([split("eager"), PLAIN, FILTERED]))


class TestReport:
    def test_a_split_in_another_setting_is_shown_with_its_name(self, report):
        assert [b.model for b in report.throughput.splits] == ["base, block, eager"] * 2
        assert [v.model for v in report.throughput.linears] == ["base, block, eager"]

    def test_each_linear_has_its_times_and_speed_up(self, report):
        [found] = report.throughput.linears
        assert [r.names[0] for r in found.rows] == ["attention.k_proj", "mlp.down_proj", "attention.q_proj"]
        slow = found.rows[0]
        assert (slow.bf16_microseconds, slow.microseconds) == pytest.approx((500.0, 600.0))
        assert (slow.ratio, slow.low, slow.high) == pytest.approx((5 / 6,) * 3)
        assert [r.slower for r in found.rows] == [True, False, False]

    def test_the_filter_is_proposed_and_its_measurement_stands_beside_it(self, report):
        [found] = report.throughput.linears
        assert found.filters == ["k_proj", "v_proj"] and found.gain == pytest.approx(1.02)
        assert found.proposed == "proposed filter: k_proj, v_proj stay in BF16; predicted gain +2.0%"
        [text] = found.measured
        assert text.startswith("a block, eager without k_proj v_proj: 1.250x [") and "measured gain +4.2% [+" in text

    @pytest.mark.parametrize("ending", [".html", ".md"])
    def test_it_stands_below_where_the_time_goes(self, report, ending):
        text = RENDERERS[ending](report)
        places = [text.index(words) for words in (
            "Throughput in depth</h2>" if ending == ".html" else "## Throughput in depth", "quantize 1.020",
            "Each linear alone: te-current native, base, block, eager", "predicted gain +2.0%", "measured gain +4.2%", "attention.k_proj, ",
        )]  # fmt: skip
        assert places == sorted(places)
        assert text.count("0.833 [0.833, 0.833]") == 1 and text.count("1.333 [1.333, 1.333]") == 1

    def test_only_what_is_slower_is_open_and_marked(self, report):
        page = RENDERERS[".html"](report)
        assert '<td class="out">0.833 [0.833, 0.833] slower</td>' in page
        assert "<details open><summary>The numbers of the linears" in page
        fast = RENDERERS[".html"](view.build([], {}, [], "m", Evidence([split_of(Q)])))
        assert "<details><summary>The numbers of the linears" in fast and "no filter is proposed" in fast

    def test_names_of_linears_are_text(self):
        evil = KV.model_copy(update={"fqns": ("a|b `c` &amp;", "d")})
        made = view.build([], {}, [], "m", Evidence([split_of(evil)]))
        assert "a\\|b \\`c\\` &amp;amp;, d |" in RENDERERS[".md"](made)
        assert "a|b `c` &amp;amp;, d</th>" in RENDERERS[".html"](made)
