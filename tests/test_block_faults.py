"""Planted faults of times of blocks and steps: each is red in the right place, and a sound record beside them is green."""

from __future__ import annotations

from typing import Any

import pytest
from fp8parity.judging import speed
from fp8parity.judging.policy import SpeedRow
from fp8parity.judging.references import pooling
from fp8parity.records.schema import Throughput
from fp8parity.records.times import BlockShape
from fp8parity.workload.shapes import TIMED_BLOCKS
from sessions import stored
from timings import CELL, calm_but, made

SHAPE = BlockShape(dim=4096, hidden=14336, heads=32, kv_heads=8, sequence=4096, micro_batch=1)
BLOCK_CELL = CELL.model_copy(update={"model": "llama3-8b"})
CAPPED = calm_but(sm_clocks=[1605] * 22, power_capped=0.9)


def block(ratio: float = 1.5, **changes: Any) -> Throughput:
    return made(ratio, cell=BLOCK_CELL, block=SHAPE, **changes)


@pytest.fixture(scope="module")
def row() -> SpeedRow:
    """The row of the project's own policy, so that a row that is too wide for these faults is red here."""
    return stored()[1].speed_row(BLOCK_CELL)


def judged(record: Throughput, row: SpeedRow, golden: Throughput | None = None) -> tuple[str, str]:
    found = speed.judge(record, pooling.updated(None, [golden or block()]), row)
    assert found.check == "block throughput"
    return found.status, found.headline


def longer(factor: float, **changes: Any) -> Throughput:
    """A sound block, all of whose times are longer by this factor."""
    sound = block()
    times = {name: [s * factor for s in getattr(sound, name)] for name in ("bf16_seconds", "recipe_seconds")}
    return block(**{**times, **changes})


def delayed(share: float) -> Throughput:
    """Something that delays every step of the recipe by a share of its time."""
    sound = block()
    return block(recipe_seconds=[s * (1 + share) for s in sound.recipe_seconds])


def test_a_delay_of_5_per_cent_is_red(row):
    assert judged(delayed(0.05), row) == ("fail", "slower: 1.429x BF16, golden 1.500x")
    assert judged(delayed(0.0), row)[0] == judged(delayed(0.01), row)[0] == "pass"


def test_a_gain_of_the_same_size_is_told(row):
    assert judged(delayed(-0.05), row)[0] == "improved"


def test_a_tenth_more_memory_is_red(row):
    sound = block()
    more = block(recipe_memory=round(1.1 * sound.recipe_memory))
    assert judged(more, row) == ("fail", "more memory: 0.990 of BF16's, golden 0.900")
    assert judged(block(recipe_memory=round(1.01 * sound.recipe_memory)), row)[0] == "pass"


def test_a_power_limit_that_holds_clock_and_bf16_down_is_inconclusive_and_shown(row):
    assert judged(longer(1 / 0.92, watch=CAPPED), row) == (
        "inconclusive",
        "the power limit held the GPU at 1605 MHz in 90% of the turns, and BF16 is 8.0% slower; the golden was timed at 1980 MHz",
    )
    assert judged(longer(1 / 0.92), row)[0] == "pass"


def test_a_bf16_that_is_slower_than_the_clock_explains_is_the_framework(row):
    """The clock is 19% lower, BF16 takes 1.4 times as long."""
    assert judged(longer(1.4, watch=CAPPED), row)[0] == "drift"


def test_another_step_is_stale_at_any_clock(row):
    assert judged(longer(1 / 0.92, watch=CAPPED, attention="another"), row)[0] == "stale"


def test_a_card_that_needs_a_lower_clock_for_the_same_speed_is_judged(row):
    """11 cells of one H100 had clocks 6% to 10% below the goldens', BF16 within 1.2% of them, and ratios within 3.8% (golden/README.md)."""
    assert judged(block(watch=CAPPED), row)[0] == "pass"
    assert judged(block(1.4, watch=CAPPED), row)[0] == "fail"


def test_a_gpu_that_is_always_at_its_limit_is_judged_at_its_own_clock(row):
    """A fault there is not hidden by the limit: golden and record ran at one clock."""
    assert judged(block(watch=CAPPED), row, golden=block(watch=CAPPED))[0] == "pass"
    slow = block(1.4, watch=CAPPED)
    assert judged(slow, row, golden=block(watch=CAPPED))[0] == "fail"
    found = speed.judge(slow, None, row)
    assert ("GPU", "1605 MHz, at its power limit in 90% of the turns") in found.lines


def test_a_lower_clock_without_a_power_limit_has_other_reasons(row):
    """They are in ``throttled``, or BF16's own rate shows them."""
    assert judged(block(watch=calm_but(sm_clocks=[1605] * 22, power_capped=0.0)), row)[0] == "pass"


def test_the_rows_of_blocks_see_the_faults():
    """Every block of the suite has a row that is narrower than a delay of 5%."""
    rules = stored()[1]
    for name in TIMED_BLOCKS:
        found = rules.speed_row(BLOCK_CELL.model_copy(update={"model": name}))
        assert 1 - found.band > 1 / 1.05 and found.memory_band < 0.1
