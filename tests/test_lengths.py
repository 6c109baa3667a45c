"""Schedules of 20,000 steps: their windows, their reports, their records, and the table of gaps by length."""

from __future__ import annotations

import math
import runpy
from collections.abc import Sequence

import numpy as np
import pytest
import reports
from fp8parity.judging import loss, stats
from fp8parity.judging.policy.rows import window_of
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.stats import Floats
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import to_json
from fp8parity.report import RENDERERS
from fp8parity.training.loop import recorded
from fp8parity.workload.presets import presets
from narrowed import some
from processes import ROOT

STEPS = presets()["tiny-long"].schedule.steps
TOOL = runpy.run_path(str(ROOT / "benchmarks" / "gap_tables.py"))
FLOOR, LOSS = 3.3, 3.333
"""The excess is 1% of the loss."""


@pytest.mark.parametrize(("steps", "length"), [(8, 8), (300, 10), (2_000, 10), (20_000, 100)])
def test_long_runs_have_long_windows(steps, length):
    assert window_of(steps) == length


@pytest.fixture(scope="module")
def report() -> reports.Report:
    return reports.report(recipes=("te-delayed",), steps=STEPS)


def test_report_of_a_long_run_stays_small(report):
    plot, paired = (reports.plots(report)[name] for name in ("loss-0", "paired-0"))
    assert {len(t["y"]) for t in plot.data} == {1_000} and {t["dx"] for t in plot.data} == {20}
    assert {len(t["y"]) for t in paired.data} == {200} and {t["dx"] for t in paired.data} == {100}
    golden = np.mean([s.loss for s in some(report.evidence.goldens.loss["tiny", "topics"]).seeds[:3]], axis=0)
    drawn = next(t for t in plot.data if t.get("name") == "golden")["y"]
    assert drawn == pytest.approx(golden.reshape(-1, 20).mean(1).tolist(), rel=5e-5)
    assert len(reports.tables(report)["Losses of tiny"].rows) == 200
    assert len(RENDERERS[".html"](report)) < 2_000_000  # plotly.js has 1.5 MB of it
    assert len(RENDERERS[".json"](report)) < 200_000


def test_a_late_spike_of_a_long_run_is_seen_where_it_is():
    bf16 = [reports.run("tiny", "bf16", s, STEPS) for s in range(3)]
    sound = [reports.run("tiny", "te-delayed", s, STEPS) for s in range(3)]
    late = np.asarray(sound[1].loss)
    late[15_030:15_100] *= 1.04
    spiked = [sound[0], sound[1].model_copy(update={"loss": late.tolist()}), sound[2]]
    golden = reports.loss_goldens.from_runs(bf16, [])
    rules = reports.sessions.stored()[1].model_copy(update={"loss": (reports.ROW,)})
    found = [loss.judge(runs, bf16, golden, rules, MeasuredNumbers()) for runs in (sound, spiked)]
    assert [v.status for v in found] == ["pass", "fail"]
    assert "steps 15000 to 15099, seed 1" in found[1].headline


def run(recipe: str, seed: int, gaps: Floats, variant: str = "") -> Trajectory:
    """A run of the loss LOSS, times a noise of the seed, with a gap in each fifth, and half of the last one held out."""
    common = np.random.default_rng(seed).normal(1, 1e-3, STEPS)
    values = LOSS * common * (1 + np.repeat(gaps, STEPS // 5))
    made = reports.run("tiny-long", recipe, seed, 10, variant=variant, floor=FLOOR)
    seen = [(999, 2 * LOSS), (STEPS - 1, LOSS * (1 + gaps[-1] / 2))]
    schedule = {"steps": STEPS, "tail": STEPS // 5}
    return made.model_copy(update={"loss": values.tolist(), "validation": seen, "schedule": schedule})


def table(runs: Sequence[Trajectory]) -> dict[str, list[str]]:
    """The rows by their first entry."""
    rows = [[entry.strip() for entry in line.split("|")[1:-1]] for line in TOOL["lengths"](runs) if line]
    return {row[0]: row[1:] for row in rows}


LATE = np.array([0, 0, 0, 0, 1e-4])
SEEDS = (-1.5, -0.5, 0.5, 1.5)
"""What the seeds of a recipe differ by, in units of its gap."""


def test_gaps_by_length_have_those_that_were_planted():
    """Against the mean of a run and its replica, whose halved gap is that of BF16 itself."""
    runs = []
    for seed, own in enumerate(SEEDS):
        runs += [run("bf16", seed, 0 * LATE), run("bf16", seed, LATE * own / 10, "replica1")]
        runs += [run("te-block", seed, LATE * (2 + own / 2)), run("te-delayed", seed, LATE * (3 + own / 2))]
        runs += [run("bf16", seed, LATE * 100, "layer not updated")]
    found = table(runs)
    heads = ["seeds", "300-600", "600-1,000", "1,000-2,000", "2,000-5,000"]
    heads += ["5,000-10,000", "10,000-16,000", "16,000-20,000", "held-out, tail"]
    assert found["mean gap, %, steps"][:-1] == heads
    assert set(found["te-block native"][1:-3]) == {"+0.0000 ± 0.0000"}
    sd = float(np.std(SEEDS, ddof=1)) * stats.student(0.975, 3) / 2  # of the mean of four seeds, in units of 0.01%

    def tail(gap: float, sd: float) -> list[str]:
        """The gap of the tail, of the held-out loss, and as a share of the excess."""
        both = [f"+{unit * gap:.4f} ± {unit * sd:.4f}" for unit in (0.01, 0.005)]
        return [*both, f"+{gap / 0.99:.2f} ± {sd / 0.99:.2f}"]

    ulp = [entry.replace("-0.0000", "+0.0000") for entry in found["bf16, one ulp"][-3:]]
    assert ulp == tail(0, sd / 10)
    part = sd * (0.5 - 0.05)  # the reference has half of the replica's gap
    for label, gap in {"te-block native": 2, "te-delayed native": 3}.items():
        assert found[label][0] == "4"
        assert found[label][-3:] == tail(gap, part)
    assert found["te-delayed native - te-block native"] == ["4", "+0.0100 ± 0.0000", f"+{1 / 0.99:.2f} ± 0.00", "yes"]


def test_a_difference_within_the_noise_does_not_exclude_zero():
    runs = [run("bf16", seed, 0 * LATE) for seed in range(4)]
    runs += [run("te-block", s, LATE * (2 + own / 2)) for s, own in enumerate(SEEDS)]
    runs += [run("te-delayed", s, LATE * (2.1 - own / 2)) for s, own in enumerate(SEEDS)]
    found = table(runs)
    assert "bf16, one ulp" not in found
    assert found["te-delayed native - te-block native"][-1] == "no"


def test_two_schedules_have_no_table():
    with pytest.raises(ValueError, match="one model and schedule"):
        TOOL["lengths"]([run("bf16", 0, LATE), run("bf16", 1, LATE).model_copy(update={"spec_hash": "other"})])


def test_records_of_long_runs_hold_fp32_by_its_shortest_decimals():
    """Half of the bytes, and the same numbers."""
    values = np.random.default_rng(0).normal(3.4, 0.1, STEPS).astype(np.float32)
    exact = [float(v) for v in values]
    short = recorded([*exact[:-1], math.nan])
    assert np.array_equal(np.asarray(short[:-1], np.float32), values[:-1]) and math.isnan(short[-1])
    assert recorded(exact[:1_999]) == exact[:1_999]
    made = run("bf16", 0, LATE)
    sizes = [len(to_json(made.model_copy(update={"loss": v, "grad_norm": v}))) for v in (exact, recorded(exact))]
    assert sizes[1] < 600_000 < sizes[0]
