"""The verdict on training-step times: two-sided, against the golden of the same GPU, and none on a disturbed GPU.

tests/faults/speeds.py has more of what must be red.
"""

from __future__ import annotations

import pytest
from fp8parity.judging import speed
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.references import Goldens, pooling, store
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.records.cell import Mode
from fp8parity.records.schema import AnyRecord, TimeSplit
from fp8parity.records.sets import load, machines, save
from fp8parity.records.storage import name_of
from fp8parity.records.times import LinearTime, Split
from fp8parity.workload.shapes import TIMED_BLOCKS
from sessions import stored
from timings import CELL, GPU, HERE, POLICY, ROW, SHAPE, THRESHOLDS, made


@pytest.fixture
def golden(tmp_path):
    pooling.store(tmp_path, made(), POLICY)
    return store.load(tmp_path, SpeedGolden)[GPU, "base", "training-step"]


def test_the_numbers_shown_are_those_of_the_blocks():
    found = speed.measured(made(1.25, spread=0.0))
    assert (found.ratio, found.low, found.high, found.pairs) == pytest.approx((1.25, 1.25, 1.25, 11))
    assert found.bf16_tokens_per_second == pytest.approx(16384 * 2 / 0.4)
    assert found.tokens_per_second == pytest.approx(16384 * 2 / 0.4 * 1.25)
    assert found.bf16_mfu == pytest.approx(81920 * 2e9 / 989e12)
    assert found.mfu == pytest.approx(1.25 * 81920 * 2e9 / 989e12)
    assert speed.measured(made(peak_flops=None)).mfu is None


def test_an_unknown_gpu_has_no_golden_and_shows_what_it_did(tmp_path, golden):
    other = made(provenance=HERE.model_copy(update={"device": "NVIDIA Other"}))
    assert set(store.load(tmp_path, SpeedGolden)) == {(GPU, "base", "training-step")}
    found = speed.judge(other, None, ROW, THRESHOLDS)
    assert (found.status, found.green) == ("no-golden", False)
    assert "te-current native on NVIDIA Other" in found.headline
    assert dict(found.lines)["speed"].startswith("1.200x BF16 [") and "98,304 tokens/s" in dict(found.lines)["speed"]
    assert dict(found.lines)["memory"] == "18.0 GiB, BF16 20.0 GiB"


BLOCK_CELL = CELL.model_copy(update={"model": "llama3-8b"})


def test_the_rows_of_blocks_are_narrower_than_the_faults():
    """Every block of the suite has a row that is narrower than a delay of 5%."""
    rules = stored()[1]
    for name in TIMED_BLOCKS:
        found = rules.speed_row(BLOCK_CELL.model_copy(update={"model": name}))
        assert 1 - found.band > 1 / 1.05 and found.memory_band < 0.1


SIDE = Split(seconds=0.01, categories={"gemm": 0.006, "attention": 0.001, "idle": 0.003})
KEYS = LinearTime(
    fqns=("attention.k_proj", "attention.v_proj"), k=4096, n=1024, bf16_seconds=[1e-4], recipe_seconds=[2e-4]
)
SPLIT = TimeSplit(
    linears=[KEYS],
    cell=CELL,
    block=SHAPE,
    mode=Mode.EAGER,
    tokens=4096,
    bf16=SIDE,
    recipe=SIDE,
    provenance=HERE,
    session="s",
)


def test_names_say_what_was_made():
    found = [
        name_of(r)
        for r in (
            made(),
            made(block=SHAPE),
            made(block=SHAPE, variant="graphed"),
            SPLIT,
            made(variant="length 512"),
        )
    ]
    parts = ("training-step", "block", "block-graphed", "block-split", "training-step-length-512")
    assert found == [f"te-current-base-native-topics-{part}.json" for part in parts]


def test_a_set_keeps_them_apart_and_whole(tmp_path):
    records: list[AnyRecord] = [made(), made(block=SHAPE), made(block=SHAPE, variant="graphed"), SPLIT]
    save(records, tmp_path / "set")
    [machine] = machines(load([tmp_path / "set"]))
    assert machine.timings == {(CELL, "training-step"): records[0], (CELL, "block"): records[1]}
    assert machine.splits == {(CELL, "block-split"): SPLIT} and machine.variants == [records[2]]
    assert sorted(map(name_of, machine.records)) == sorted(map(name_of, records))


def test_a_block_is_held_to_the_golden_of_blocks(tmp_path):
    [first] = pooling.store(tmp_path, made(1.5, block=SHAPE), POLICY)
    pooling.store(tmp_path, made(1.2), POLICY)
    assert first.startswith(f"{GPU}, base block: new, ")
    stored = store.load(tmp_path, SpeedGolden)
    assert set(stored) == {(GPU, "base", "training-step"), (GPU, "base", "block")}
    [found] = evaluate([made(1.5, block=SHAPE), made(1.2)], Goldens(throughput=stored), POLICY)
    assert [(v.check, v.status) for v in found.verdicts] == [("block throughput", "pass"), ("throughput", "pass")]


def test_times_of_another_setting_are_shown_and_neither_judged_nor_stored(tmp_path):
    other = made(block=SHAPE, variant="sequence 8192")
    [found] = evaluate([other, SPLIT], Goldens(), POLICY)
    assert found.verdicts == ()
    with pytest.raises(ValueError, match="its setting is not that of the suite: sequence 8192"):
        pooling.store(tmp_path, other, POLICY)
