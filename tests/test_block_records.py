"""Records of the times of a transformer block, and of where the time of a step goes: kept, named, and judged beside their own golden."""

from __future__ import annotations

from pathlib import Path

import pytest
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens, pooling, store
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.records.cell import Mode
from fp8parity.records.schema import AnyRecord, TimeSplit
from fp8parity.records.sets import load, machines, save
from fp8parity.records.storage import name_of
from fp8parity.records.times import Category, LinearTime, Split
from timings import CELL, GPU, HERE, ROW, SHAPE, made

POLICY = Policy(path=Path("policy.toml"), speed=(ROW,))
SIDE = Split(seconds=0.01, categories={Category.GEMM: 0.006, Category.ATTENTION: 0.001, Category.IDLE: 0.003})
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


def test_names_say_what_was_timed():
    found = [
        name_of(r)
        for r in (made(), made(block=SHAPE), made(block=SHAPE, variant="graphed"), SPLIT, made(variant="length 512"))
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
    [first] = pooling.store(tmp_path, made(1.5, block=SHAPE), ROW)
    pooling.store(tmp_path, made(1.2), ROW)
    assert first.startswith(f"{GPU}, base block: + te-current native: ")
    stored = store.load(tmp_path, SpeedGolden)
    assert set(stored) == {(GPU, "base", "training-step"), (GPU, "base", "block")}
    [found] = evaluate([made(1.5, block=SHAPE), made(1.2)], Goldens(throughput=stored), POLICY)
    assert [(v.check, v.status) for v in found.verdicts] == [("block throughput", "pass"), ("throughput", "pass")]


def test_times_of_another_setting_are_shown_and_neither_judged_nor_stored(tmp_path):
    other = made(block=SHAPE, variant="sequence 8192")
    [found] = evaluate([other, SPLIT], Goldens(), POLICY)
    assert found.verdicts == ()
    with pytest.raises(ValueError, match="its setting is not that of the suite: sequence 8192"):
        pooling.store(tmp_path, other, ROW)
