"""The HTML page of the verdict on two imported runs: the scale of its plot, its labels, and the words for each verdict."""

from __future__ import annotations

import re

import numpy as np
import pytest
from curves import curve
from fp8parity.judging.pair import PairVerdict, judge
from fp8parity.judging.pair.finding import Asked
from fp8parity.report import pair
from fp8parity.report.pair import PairReport
from pairs import _run


def verdict(gap: float | list[float] = 0.0) -> PairVerdict:
    return judge([_run(curve())], [_run(curve(chaos=1).with_gap(gap))], Asked())


def page(found: PairVerdict) -> str:
    return pair.html(PairReport(found, "fp8parity verdict a b", "torch 2"))


def heights(line: str) -> list[float]:
    return [float(point.split(",")[1]) for point in line.split()]


def test_the_scale_holds_the_margin_on_both_sides():
    plot = pair._plot(verdict())
    assert [t.text for t in plot.ticks] == ["0", "+0.25%", "-0.25%"] and plot.cut == 0
    assert 0 < plot.margins[0] < plot.zero < plot.margins[1] < 100
    assert all(plot.margins[0] < y < plot.margins[1] for y in heights(plot.line))
    assert (plot.first, plot.last, plot.window) == (1, 400, 3) and len(heights(plot.line)) == 133


@pytest.mark.parametrize(("gap", "extreme"), [(0.01, "+1.0"), (-0.01, "-1.0")])
def test_a_gap_beyond_the_margin_has_a_label(gap, extreme):
    plot = pair._plot(verdict(gap))
    assert plot.ticks[-1].text.startswith(extreme) and len(plot.ticks) == 4
    assert (np.mean(heights(plot.line)) < plot.zero) == (gap > 0)


def test_the_first_tenth_does_not_set_the_scale():
    gaps = [0.5] * 21 + [0.0] * 379
    plot = pair._plot(verdict(gaps))
    assert plot.cut == 7 and heights(plot.line)[:7] == [0.0] * 7 and plot.margins[0] > 5


@pytest.mark.parametrize(("gap", "kind"), [(0.0, "green"), (0.01, "red"), (0.0025, "unsure")])
def test_the_sentence_comes_first_and_has_its_color(gap, kind):
    found = verdict(gap)
    text = page(found)
    assert re.search(rf'<p class="lead {kind}">{pair.PairReport(found, "", "").sentence.split(",")[0]}', text)
    for name, _ in found.lines:
        assert f"<dt>{name}</dt>" in text
    assert text.count("<li>") == len(found.unchecked)
