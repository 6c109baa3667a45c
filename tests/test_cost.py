"""What a loss gap costs: its share of BF16's excess over the floor, or as tokens, wherever the gap is shown."""

from __future__ import annotations

import numpy as np
import pytest
from fp8parity.judging import worth
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.references import Goldens
from fp8parity.judging.references import loss as loss_goldens
from fp8parity.judging.stats import Interval
from fp8parity.report import RENDERERS, ci, comparison
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report
from two_sides import POLICY, change, compared

GAP = Interval(0.001, 0.0005, 0.0015, 3, 0.9)
FALLING = [(4 - 0.001 * np.arange(100) + 1e-6 * np.sin(7 * np.arange(100))).tolist()]
FLOOR = 3.5
LOSS = float(np.mean([5 - 0.1 * s + 0.02 for s in range(8, 12)]))
"""About BF16's loss in the tail of the made-up runs. Their seeds differ by up to 0.04."""


def test_gap_is_a_share_of_the_excess():
    found = worth.cost(GAP, [[4.0, 3.6, 3.4]], 2, 3.4)
    assert found is not None and (found.loss, found.name) == (3.5, "excess")
    assert (found.low, found.mean, found.high) == pytest.approx((0.0175, 0.035, 0.0525))
    assert found.text == "+3.50% [+1.75%, +5.25%] of the excess"
    assert found.line.endswith("of BF16's loss, 3.5000, over the corpus's entropy, 3.4000")


def test_gap_without_a_floor_is_tokens():
    found, share = worth.cost(GAP, FALLING, 50, None), worth.later_share(GAP, FALLING, 50)
    assert found is not None and share is not None
    assert (found.name, found.mean, found.low, found.high) == ("tokens", share.mean, share.low, share.high)
    assert found.text.endswith(" more tokens")
    assert found.mean == pytest.approx(0.001 * 3.9255 / 0.001 / 100, rel=1e-3), "3.9 steps of 100"


@pytest.mark.parametrize(("losses", "floor"), [([3.0] * 9, 3.0), ([3.0] * 9, 3.1), ([3.0] * 9, None)])
def test_loss_below_the_floor_or_flat_has_no_cost(losses, floor):
    assert worth.cost(GAP, [losses], 4, floor) is None


@pytest.fixture
def judged(runs, trajectory):
    def made(floor: float | None) -> Report:
        golden = loss_goldens.from_runs([trajectory(seed=s, floor=floor) for s in range(8)], [])
        stored = Goldens(loss={("nano", "topics"): golden})
        [found] = evaluate(runs(floor=floor, recipe=0.002), stored, POLICY)
        return Report(found.verdicts, None, [], "EPYC", Evidence(found.machine.records, stored, POLICY))

    return made


def test_verdict_and_report_show_the_excess_and_do_not_judge_it(judged):
    report, without = judged(FLOOR), judged(None)
    v, bare = (next(v for v in r.verdicts if v.cell.recipe == "te-current") for r in (report, without))
    assert v.loss and v.loss.gap and v.loss.gap.cost and bare.loss and bare.loss.gap
    cost = v.loss.gap.cost
    assert cost.mean / v.loss.gap.mean == pytest.approx(LOSS / (LOSS - FLOOR), rel=0.03)
    assert cost.high / v.loss.gap.high == pytest.approx(cost.mean / v.loss.gap.mean)
    assert ("excess", cost.line) in v.lines
    assert (v.status, v.headline, v.failing) == (bare.status, bare.headline, bare.failing)
    assert bare.loss.gap.model_copy(update={"cost": None}) == v.loss.gap.model_copy(update={"cost": None})
    assert all(cost.text in RENDERERS[ending](report) for ending in (".md", ".html", ".json"))
    assert ci.numbers(v)["excess"] == cost.mean and "excess" not in ci.numbers(bare)


def test_comparison_shows_the_excess_of_what_changed(runs):
    found = compared(runs(floor=FLOOR), runs("2.13.0", floor=FLOOR, recipe=0.02, control=0.001))
    recipe, control = change(found), change(found, "bf16")
    assert recipe.recipe and recipe.recipe.cost and control.framework and control.framework.cost
    for shift in (recipe.recipe, control.framework):
        assert shift.cost and shift.cost.mean / shift.mean == pytest.approx(LOSS / (LOSS - FLOOR), rel=0.03)
    assert recipe.cost == recipe.recipe.cost.text and recipe.cost in comparison.RENDERERS[".md"](found)
