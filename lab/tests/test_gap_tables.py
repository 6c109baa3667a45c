"""The table of gaps by length: what was planted in long runs is found."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import gap_tables
import numpy as np
import pytest
import reports
from documents import ROOT
from fp8parity.judging import stats
from fp8parity.judging.stats import Floats
from fp8parity.records.schema import Trajectory
from fp8parity_lab.long_runs import SCHEDULES

STEPS = SCHEDULES["tiny-long"].steps
FLOOR, LOSS = 3.3, 3.333
"""The excess is 1% of the loss."""


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
    rows = [[entry.strip() for entry in line.split("|")[1:-1]] for line in gap_tables.lengths(runs) if line]
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
        gap_tables.lengths([run("bf16", 0, LATE), run("bf16", 1, LATE).model_copy(update={"spec_hash": "other"})])


DAY = datetime.date(2026, 11, 22)
"""Known failures end, but the README's tables stay."""


@pytest.mark.slow
def test_tables_are_those_of_the_records():
    lines = gap_tables.gaps(gap_tables.report(DAY, ROOT / "golden" / "records" / "h200-experts.zip"))
    assert len(lines) == 8 and "\n".join(lines) in (ROOT / "lab" / "docs" / "evidence" / "models.md").read_text()
    for name in ("theory.md", "throughput.md"):
        text = (ROOT / "docs" / name).read_text()
        assert len(gap_tables.MARK.findall(text)) == 1 and gap_tables.current(text, DAY) == text
