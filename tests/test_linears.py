"""Each linear alone: the blocks that were timed with a filter beside their split, and what a report shows of both."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reports
from fp8parity.judging import speed
from fp8parity.judging.module_filter import filtered
from fp8parity.records.schema import Throughput, TimeSplit
from fp8parity.report import RENDERERS
from fp8parity.report.summary import Evidence, Report
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
    def test_the_gain_is_the_ratio_of_both_speed_ups(self):
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
    def test_blocks_with_other_differences_do_not_count(self, of, records):
        assert filtered(of, records) == []

    def test_a_split_step_takes_any_block_of_its_model(self):
        whole = split("", block=None, layers=4)
        assert [f.variant for f in filtered(whole, [PLAIN, FILTERED])] == [FILTERED.variant]


@pytest.fixture(scope="module")
def report() -> Report:
    return Report([], {}, [], "m", Evidence([split("eager"), PLAIN, FILTERED]))


def test_a_report_shows_the_slowest_linear_first(report):
    rows = reports.texts(reports.tables(report)["Linears of te-current native, base, block, eager"])
    assert [row[0].split(",")[0] for row in rows] == ["attention.k_proj", "mlp.down_proj", "attention.q_proj"]
    assert rows[0][1:] == ["500.0", "600.0", "0.833 [0.833, 0.833] slower"] and rows[2][3] == "1.333 [1.333, 1.333]"


@pytest.mark.parametrize("ending", [".html", ".md"])
def test_linears_are_shown_below_where_the_time_goes(report, ending):
    text = RENDERERS[ending](report)
    places = [text.index(words) for words in (
        "Throughput in depth</h2>" if ending == ".html" else "## Throughput in depth", "quantize 1.020",
        "Each linear alone: te-current native, base, block, eager", "predicted gain +2.0%", "measured gain +4.2%", "attention.k_proj, ",
    )]  # fmt: skip
    assert places == sorted(places)
