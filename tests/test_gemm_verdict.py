"""Verdicts on timed GEMMs: beside their golden on both sides, and on a GPU that was disturbed."""

from __future__ import annotations

import gemm_records
import pytest
import sessions
from fp8parity.judging import gemms
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.gemm_sums import total
from fp8parity.judging.references import Goldens, pooling
from fp8parity.records.gemms import GemmMode
from gemm_records import GPU, ROW, THRESHOLDS, changed, judged, made, slower, watched

LOST = {"bf16_seconds": [], "recipe_seconds": [], "failed": "no algorithm"}


@pytest.mark.parametrize(
    ("record", "status", "words"),
    [
        (made(), "pass", "inside"),
        (made(training=1.6 * 1.08), "improved", "faster than the golden by more than its band: training sum"),
        (made(training=1.6 * 1.3), "fail", "such a gain is a fault"),
        (made(watch=None), "inconclusive", "was not watched"),
        (made(watch=watched(busy_before=40)), "inconclusive", "40% busy before"),
        (made(watch=watched(busy_after=40)), "inconclusive", "40% busy after"),
        (made(watch=watched(throttled=["hardware thermal"])), "inconclusive", "throttled: hardware thermal"),
        (
            made(watch=watched(power_capped=0.9)),
            "inconclusive",
            "at its power limit in 90% of the samples, and in 0% of the golden's",
        ),
        (made(watch=watched(power_capped=0.2)), "pass", "inside"),
        (made(sequence=1024), "stale", "the golden is of 31 x 512 tokens, the record of 31 x 1024 tokens"),
        (
            changed(made(), "up fprop kernel", n=8192),
            "stale",
            "up fprop kernel is 15872x4096x8192, and 15872x4096x16384 in the golden",
        ),
    ],
)
def test_a_record_beside_its_golden(record, status, words):
    found = judged(record)
    assert (found.status, words in found.headline) == (status, True), found.message()


def test_bf16_that_moved_is_no_fault_of_the_recipe():
    found = judged(slower(made(), 1.2))
    assert found.status == "drift"
    assert found.headline.startswith("BF16 itself changed: -16.7%, from 640 to 533 TFLOP/s")


def test_a_golden_that_was_capped_expects_a_cap():
    golden = pooling.updated(None, [made(watch=watched(power_capped=1.0))])
    assert judged(made(watch=watched(power_capped=0.9)), golden).status == "pass"


def test_without_a_golden_faults_of_every_machine_are_still_found():
    silent = changed(made(), "down dgrad kernel", kernels=["nvjet_sm90_tst"])
    assert gemms.judge(made(), None, ROW, THRESHOLDS).status == "no-golden"
    assert gemms.judge(silent, None, ROW, THRESHOLDS).status == "fail"


def test_a_gemm_that_only_the_golden_has_is_lost():
    """The head is in no sum, so nothing else would miss it."""
    whole = made("llama3-8b")
    golden = pooling.updated(None, [whole])
    for count, words in (
        (1, "lm_head fprop kernel is missing: the golden has it"),
        (6, "lm_head fprop kernel is missing (and 5 more): the golden has it"),
    ):
        head = [g for g in whole.gemms if g.part == "model"][:count]
        found = judged(whole.model_copy(update={"gemms": [g for g in whole.gemms if g not in head]}), golden)
        assert (found.status, found.headline) == ("error", words)
    fewer = pooling.updated(None, [whole.model_copy(update={"gemms": whole.gemms[:-1]})])
    assert judged(whole, fewer).headline == "the golden has no lm_head wgrad training"


@pytest.mark.parametrize(("pairs", "status"), [(5, "error"), (6, "inconclusive"), (7, "inconclusive"), (8, "pass")])
def test_few_pairs_are_no_measurement(pairs, status):
    def few(record):
        times = ("bf16_seconds", "recipe_seconds")
        return record.model_copy(
            update={"gemms": [g.model_copy(update={k: getattr(g, k)[:pairs] for k in times}) for g in record.gemms]}
        )

    assert judged(few(made())).status == status


def test_a_sum_with_a_lost_gemm_is_none():
    for record in (changed(made(), "qkv fprop kernel", **LOST), made(gemms=made().gemms[2:])):
        found = total(record, GemmMode.KERNEL)
        assert found.ratio is None
        assert found.failed.startswith("qkv fprop")
    assert total(changed(made(), "qkv fprop kernel", **LOST), GemmMode.TRAINING).ratio == pytest.approx(1.6)


def test_evaluate_judges_gemms_with_the_policy_of_this_project():
    rules = sessions.stored()[1]
    stored = Goldens(gemms={(GPU, "codonfm-5b"): pooling.updated(None, [made()])})
    (found,) = evaluate([made(), made(tool="te-benchmark"), gemm_records.main_grads(made())], stored, rules)
    assert [(v.check, v.status) for v in found.verdicts] == [("GEMM throughput", "pass")]


def test_one_wgrad_that_adds_to_its_result_is_judged_and_red():
    """What nobody asked for: only with --main-grads do all of them add."""
    record = changed(made(), "o wgrad training", accumulates=True)
    assert record.shown_only == "" and "main_grads" not in record.content
    assert judged(record).headline == "o wgrad training: adds to its result, golden the other way"


@pytest.mark.parametrize(("change", "status"), [(0.9, "pass"), (1.0 / 1.11, "pass"), (0.5, "drift")])
def test_bf16_may_change_by_its_band(change, status):
    rules = ROW.model_copy(update={"bf16_band": 0.25})
    assert gemms.judge(slower(made(), 1 / change), pooling.updated(None, [made()]), rules, THRESHOLDS).status == status
