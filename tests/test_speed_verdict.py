"""Verdicts on times of steps: the whole sentence of each, and what holds exactly on the edge of a band."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fp8parity.judging import speed
from fp8parity.judging.policy import SpeedRow
from fp8parity.judging.references import pooling
from fp8parity.records.cell import Mode
from fp8parity.records.schema import Throughput
from timings import CELL, HERE, THRESHOLDS, calm_but, made

WIDE = SpeedRow(band=0.25, memory_band=0.25, bf16_band=0.25, why="edges that are exact")
WIDE_CLOCKS = replace(THRESHOLDS, clock_band=0.25)
STEP = 105 / 128
"""Seconds that have exact quotients by 3/2, 5/2 and 7/2."""
ON_CPU = HERE.model_copy(update={"capability": None})


def exact(ratio: float | Sequence[float] = 2.0, memory: float = 0.5, bf16: float = 1.0, **changes: Any) -> Throughput:
    """A record of 11 pairs with exactly this ratio or these ratios, and with this share of BF16's memory."""
    ratios = [ratio] * 11 if isinstance(ratio, int | float) else list(ratio)
    own = [STEP * bf16] * len(ratios)
    times = {"bf16_seconds": own, "recipe_seconds": [b / r for b, r in zip(own, ratios, strict=True)]}
    return made(**{**times, "bf16_memory": 2**34, "recipe_memory": round(2**34 * memory), **changes})


def between(low: float, middle: float, high: float) -> list[float]:
    """Eleven ratios with this interval of their median."""
    return [low] * 2 + [middle] * 7 + [high] * 2


def judged(record: Throughput, row: SpeedRow = WIDE, golden: Throughput | None = None) -> tuple[str, str]:
    found = speed.judge(record, pooling.updated(None, [golden or exact()]), row, WIDE_CLOCKS)
    return found.status, found.headline.split(":")[0] if found.status in ("improved", "fail") else found.headline


PASS = ("pass", "the ratios to BF16 are inside the golden's bands")
IMPROVED = ("improved", "faster than the golden by more than its band")
SMALLER = ("improved", "less memory than the golden by more than its band")
CROSSES = ("inconclusive", "the interval of ratio crosses the golden's band")
FAULT = "than the golden by more than 3 bands"


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (exact(1.5), PASS),
        (exact(1.25), ("fail", "slower")),
        (exact(between(1.25, 1.5, 1.5)), CROSSES),
        (exact(2.5), PASS),
        (exact(between(2.5, 2.625, 3.0)), CROSSES),
        (exact(2.625), IMPROVED),
        (exact(3.5), IMPROVED),
        (exact(3.75), ("fail", f"faster {FAULT}")),
        (exact(memory=0.625), PASS),
        (exact(memory=0.75), ("fail", "more memory")),
        (exact(memory=0.375), PASS),
        (exact(memory=0.25), SMALLER),
        (exact(memory=0.125), SMALLER),
        (exact(memory=0.0625), ("fail", f"less memory {FAULT}")),
    ],
)
def test_the_edge_of_a_band_is_inside(record, expected):
    assert judged(record) == expected


@pytest.mark.parametrize(
    ("record", "status", "words"),
    [
        (exact(bf16=2), "drift", "changed: -50.0%"),
        (exact(bf16=0.5), "drift", "changed: +100.0%"),
        (exact(bf16_seconds=[STEP] * 6 + [2 * STEP] * 5, recipe_seconds=[STEP / 2] * 6 + [STEP] * 5), "inconclusive", "[-50.0%, +0.0%]"),
        (exact(mode=Mode.EAGER), "stale", "had mode compiled, this one's eager"),
        (exact(tokens=8192), "stale", "had tokens 16384, this one's 8192"),
        (exact(flops_per_token=1e9), "stale", "had flops_per_token 2000000000.0"),
        (exact(attention="cudnn first"), "stale", "had attention torch's choice, this one's cudnn first"),
        (exact(optimizer="compiled AdamW"), "stale", "had optimizer torch's AdamW, this one's compiled AdamW"),
        (exact(watch=None), "inconclusive", "the GPU was not watched"),
        (exact(watch=calm_but(busy_before=5, busy_after=5)), *PASS),
        (exact(watch=calm_but(busy_before=6)), "inconclusive", "6% busy before the first block"),
        (exact(watch=calm_but(busy_after=6)), "inconclusive", "6% busy after the last block"),
        (exact([2.0] * 8), *PASS),
        (exact([2.0] * 7), "inconclusive", "7 pairs; 8 are needed"),
        (exact([2.0] * 5), "error", "5 pairs; 6 are needed"),
        (exact(cell=CELL.model_copy(update={"recipe": "te-block"})), "no-golden", "te-block native on NVIDIA Made Up"),
        (exact(bf16_memory=0, provenance=ON_CPU), "error", "no memory was measured, and the golden holds some"),
    ],
)  # fmt: skip
def test_every_other_status_has_its_reason(record, status, words):
    found, headline = judged(record)
    assert found == status and words in headline


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (exact([2.0] * 6), None),
        (exact([2.0] * 5), "5 pairs; 6 are needed"),
        (exact(bf16_seconds=[1.0] * 10), "10 times of BF16 and 11 of the recipe are no pairs"),
        (exact(bf16_seconds=[1.0] * 3 + [math.inf] * 8), "block 3 of bf16_seconds is inf s; a time is above zero"),
        (exact(bf16_memory=1, recipe_memory=1), None),
        (exact(bf16_memory=0), "bf16_memory is 0 bytes; a step on a GPU needs memory"),
        (exact(bf16_memory=0, recipe_memory=0, provenance=ON_CPU), None),
    ],
)
def test_times_that_are_no_measurement(record, why):
    assert speed.unusable(record) == why


def test_a_power_limit_counts_below_the_band_of_the_clock_and_of_bf16():
    """The golden was timed at 2000 MHz, and the band is a quarter. BF16 of 5/3 of the golden's time is 40% slower."""
    golden, wide = exact(watch=calm_but(sm_clocks=[2000] * 22), bf16=0.75), WIDE.model_copy(update={"bf16_band": 0.49})

    def at(clock: int, capped: float | None = 0.5, bf16: float = 1.25) -> tuple[str, str]:
        watch = calm_but(sm_clocks=[clock] * 22, power_capped=capped)
        return judged(exact(watch=watch, bf16=bf16), wide, golden)

    assert at(1500) == at(1499, 0.0) == at(1499, None) == at(1499, bf16=1.0) == at(1499, bf16=0.625) == PASS
    words = "the power limit held the GPU at 1499 MHz in 50% of the turns, and BF16 is 40.0% slower; the golden was timed at 2000 MHz"
    assert at(1499) == ("inconclusive", words)
    assert [at(1000, bf16=times)[0] for times in (3.0, 3.125)] == ["inconclusive", "drift"], (
        "half the clock and the band explain 75%"
    )
    times = [STEP] * 3 + [STEP * 1.25] * 8
    uneven = exact(
        bf16_seconds=times,
        recipe_seconds=[t / 2 for t in times],
        watch=calm_but(sm_clocks=[1499] * 22, power_capped=0.5),
    )
    assert judged(uneven, wide, golden) == ("inconclusive", words), "the median of BF16 counts"


def test_an_interval_as_wide_as_the_band_is_a_golden():
    assert speed.too_wide(exact(between(1.75, 2.0, 2.25)), WIDE) is None
    assert speed.too_wide(exact(between(1.75, 2.0, 2.5)), WIDE) == (
        "the interval of its ratio is 37.5% wide, and the band is +-25.0%; time it while the machine does nothing else"
    )
