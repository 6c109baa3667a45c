"""What a verdict on timed GEMMs says as a whole, and each of its limits at the edge."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fp8parity.judging import gemms
from fp8parity.judging.gemm_sums import total
from fp8parity.judging.policy import GemmRow
from fp8parity.judging.references import pooling
from fp8parity.judging.verdict import GemmDetail, Verdict
from fp8parity.records.gemms import Accumulation, GemmMode, GemmTimes
from gemm_records import ROW, changed, made, slower, watched

LOST: dict[str, Any] = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}
UP = ("up fprop kernel", "up dgrad kernel", "up wgrad kernel")
BF16 = "nvjet_sm90_tst_" + "128x256_" * 8


def at(places: tuple[str, ...], **changes: object) -> GemmTimes:
    """A record with changes at these places."""
    base = made()
    return base.model_copy(
        update={"gemms": [g.model_copy(update=changes) if g.place in places else g for g in base.gemms]}
    )


def judged(record: GemmTimes, golden: GemmTimes | None = None, row: GemmRow = ROW, **entry: Any) -> Verdict:
    stored = pooling.updated(None, [golden or made()])
    cells = {name: cell.model_copy(update=entry) for name, cell in stored.cells.items()}
    return gemms.judge(record, stored.model_copy(update={"cells": cells}), row)


@pytest.mark.parametrize(("n", "more"), [(1, ""), (2, " (and 1 more)"), (3, " (and 2 more)")])
def test_further_gemms_are_counted(n, more):
    places = UP[:n]
    failed = f"{UP[0]} failed{more}: no algorithm; no sum without it"
    assert gemms.unsound(at(places, **LOST), ROW) == judged(at(places, **LOST)).headline == failed
    silent = at(places, kernels=[BF16])
    said = f"silent BF16: {UP[0]}{more} ran on {BF16[:60]}, and its operands are e4m3 x e4m3"
    assert gemms.unsound(silent, ROW) == judged(silent).headline == said
    fast = at(places, accumulation=Accumulation.SPLIT)
    golden = at(places, accumulation=Accumulation.FAST)
    found = judged(fast, golden)
    assert (found.status, found.headline) == ("fail", f"{UP[0]}: split accumulation, golden fast{more}")
    assert [(f.metric, f.where) for f in found.failing] == [("split accumulation", place) for place in places]


@pytest.mark.parametrize(("n", "more"), [(1, ""), (2, " (and 1 more)")])
def test_gemms_that_only_the_golden_has_are_counted(n, more):
    """The head is in no sum, so nothing else would miss it."""
    whole = made("llama3-8b")
    head = [g.place for g in whole.gemms if g.part == "model"][:n]
    fewer = whole.model_copy(update={"gemms": [g for g in whole.gemms if g.place not in head]})
    assert judged(fewer, whole).headline == f"{head[0]} is lost{more}: the golden has it"


def test_a_sound_record_has_no_reason_against_it():
    assert gemms.unsound(made(), ROW) is None
    assert judged(made()).headline == "the ratios to BF16 are inside the golden's bands"
    detail = judged(made()).detail
    assert isinstance(detail, GemmDetail)
    assert (detail.peak_tflops, detail.content) == (800.0, "gemms-31x512")
    assert (
        detail.intervals == {m: (s.low, s.high) for m in GemmMode if (s := total(made(), m))}
        and len(detail.intervals) == 2
    )


def test_no_kernel_at_all_is_said():
    assert (
        judged(at(UP[:1], kernels=[])).headline
        == f"silent BF16: {UP[0]} ran on no GEMM kernel, and its operands are e4m3 x e4m3"
    )


def test_twelve_failing_numbers_have_lines():
    found = judged(made(gemms=[g.model_copy(update={"kernels": [BF16]}) for g in made().gemms]))
    assert len(found.failing) == 24
    assert sum(text == "quantized kernels 0" for _, text in found.lines) == 12


@pytest.mark.parametrize("formats", [("bf16", "bf16"), ("bfloat16", "bfloat16"), ("torch.bfloat16", "torch.bfloat16")])
def test_operands_in_bf16_are_not_quantized(formats):
    assert gemms.unsound(at(UP[:1], formats=formats, kernels=[BF16]), ROW) is None


@pytest.mark.parametrize(("metric", "limit"), [("error", 0.3), ("bf16_error", 0.01)])
def test_an_error_may_be_its_limit(metric, limit):
    assert gemms.unsound(at(UP[:1], **{metric: limit}), ROW) is None
    wrong = f"wrong result: {UP[0]} has {metric} {limit:g}; at most {limit:g} is right"
    assert gemms.unsound(at(UP[:1], **{metric: math.nextafter(limit, 1)}), ROW) == wrong


@pytest.mark.parametrize(
    ("was", "now", "band", "told"),
    [
        (0.04, 0.041, 0.15, None),
        (0.04, 0.05, 0.05 / 0.04 - 1, None),
        (0.04, 0.05, 0.2, "error 0.0500, golden 0.0400"),
        (0.04, 0.02, 0.2, "error 0.0200, golden 0.0400"),
        (1e-6, 1.5e-6, 0.15, None),
        (0.0, 1e-6, 0.15, None),
        (0.0, 1.1e-6, 0.15, "error 0.0000, golden 0.0000"),
    ],
)
def test_an_error_has_a_band_around_that_of_the_golden(was, now, band, told):
    found = judged(at(UP[:1], error=now), at(UP[:1], error=was), ROW.model_copy(update={"error_band": band}))
    expected = (
        ("pass", "the ratios to BF16 are inside the golden's bands") if told is None else ("fail", f"{UP[0]}: {told}")
    )
    assert (found.status, found.headline) == expected


@pytest.mark.parametrize(
    ("kernels", "told"),
    [
        (["cast"] * 3, "3 kernels beside the GEMM, golden 2: an extra cast"),
        (["cast"], "1 kernel beside the GEMM, golden 2: a cast is lost, or fused with another"),
        ([], "0 kernels beside the GEMM, golden 2: a cast is lost, or fused with another"),
    ],
)
def test_casts_are_counted(kernels, told):
    assert (
        judged(at(("up fprop training",), kernels=[*kernels, "nvjet_sm90_qqtst"])).headline
        == f"up fprop training: {told}"
    )


@pytest.mark.parametrize(("now", "told"), [(True, "adds to"), (False, "writes")])
def test_a_gemm_that_writes_its_result_in_another_way_is_told(now, told):
    found = judged(at(UP[:1], accumulates=now), at(UP[:1], accumulates=not now))
    assert found.headline == f"{UP[0]}: {told} its result, golden the other way"


def test_the_share_at_the_power_limit_may_move_by_its_limit():
    row = ROW.model_copy(update={"capped": 0.25})
    entry = pooling.gemm_entry(made(watch=watched(power_capped=0.25)))
    assert gemms.disturbed(made(watch=watched(power_capped=0.5)), row, entry) is None
    more = gemms.disturbed(made(watch=watched(power_capped=0.6)), row, entry)
    assert more == "the GPU was at its power limit in 60% of the samples, and in 25% of the golden's"


def test_a_record_without_gemms_has_no_pairs():
    assert gemms.disturbed(made(gemms=[]), ROW) == f"0 pairs; {ROW.least_pairs} are needed"


def test_bf16_may_move_by_its_band():
    record = slower(made(), 1.25)
    moved = abs(total(record, GemmMode.KERNEL).bf16_tflops / pooling.gemm_entry(made()).bf16_tflops - 1)  # type: ignore[operator]
    for band, status in ((moved, "pass"), (math.nextafter(moved, 0), "drift")):
        assert judged(record, row=ROW.model_copy(update={"bf16_band": band})).status == status


@pytest.mark.parametrize(
    ("n", "said"), [(1, " below its"), (2, " and 1 more below their"), (3, " and 2 more below their")]
)
def test_gemms_below_their_bands_are_counted(n, said):
    row = ROW.model_copy(update={"band": 0.9})
    slow = made()
    for place in UP[:n]:
        own = next(g.recipe_seconds for g in slow.gemms if g.place == place)
        slow = changed(slow, place, recipe_seconds=[s * 1.2 for s in own])
    found = judged(slow, row=row)
    assert (found.status, found.headline) == ("fail", f"slower: {UP[0]}{said} band")
    assert [(f.metric, f.where) for f in found.failing] == [("ratio", p) for p in UP[:n]]
    assert [f.value for f in found.failing] == pytest.approx([1.9 / 1.2] * n, rel=1e-3)


def test_a_slow_sum_stands_before_its_gemms():
    found = judged(made(training=1.4))
    assert (
        found.headline
        == "slower: the training sum is 1.400x BF16, golden 1.600x; qkv fprop training and 11 more below their band"
    )
    assert ("ratio", "training sum") in [(f.metric, f.where) for f in found.failing]


def of(low: float, high: float, modes: tuple[GemmMode, ...] = tuple(GemmMode)) -> GemmTimes:
    """A record whose ratios, of these modes, lie from ``low`` to ``high``. All of these numbers are exact."""
    times = {m: (low, high) if m in modes else (2.0, 2.0) for m in GemmMode}
    own = [
        {"bf16_seconds": [times[g.mode][0]] * 4 + [times[g.mode][1]] * 5, "recipe_seconds": [1.0] * 9}
        for g in made().gemms
    ]
    return made(gemms=[g.model_copy(update=t) for g, t in zip(made().gemms, own, strict=True)])


WIDE = ROW.model_copy(update={"band": 0.25, "place_band": 0.25, "bf16_band": 9.0})


def test_the_band_lies_around_the_ratio_of_the_golden_and_holds_its_ends():
    """The golden's ratio is 2, whatever its interval is."""
    sums = dict.fromkeys(("kernel", "training"), (2.0, 1.5, 2.25))
    assert [judged(of(r, r), of(2.0, 2.0), WIDE, sums=sums).status for r in (1.5, 2.5, 2.75)] == [
        "pass",
        "pass",
        "improved",
    ]


def test_the_sum_whose_interval_crosses_the_band_is_named():
    found = judged(of(1.25, 1.75, (GemmMode.TRAINING,)), of(2.0, 2.0), WIDE)
    assert (found.status, found.headline) == (
        "inconclusive",
        "the interval of the training sum crosses the golden's band",
    )
    assert total(of(2.0, 2.0), GemmMode.KERNEL).ratio == 2.0
