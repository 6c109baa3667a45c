"""Schedules of 20,000 steps: their windows, their reports and their records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reports
from fp8parity.judging import loss
from fp8parity.judging.policy.rows import window_of
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.records.storage import to_json
from fp8parity.report import RENDERERS
from fp8parity.training.loop import recorded
from narrowed import some

STEPS = 20_000


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
    assert len(RENDERERS[".json"](report)) < 600_000


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


def test_records_of_long_runs_hold_fp32_by_its_shortest_decimals():
    """Half of the bytes, and the same numbers."""
    values = np.random.default_rng(0).normal(3.4, 0.1, STEPS).astype(np.float32)
    exact = [float(v) for v in values]
    short = recorded([*exact[:-1], math.nan])
    assert np.array_equal(np.asarray(short[:-1], np.float32), values[:-1]) and math.isnan(short[-1])
    assert recorded(exact[:1_999]) == exact[:1_999]
    made = reports.run("tiny", "bf16", 0, 10)
    sizes = [len(to_json(made.model_copy(update={"loss": v, "grad_norm": v}))) for v in (exact, recorded(exact))]
    assert sizes[1] < 600_000 < sizes[0]
