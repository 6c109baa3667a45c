"""The split of a step: the filter that it proposes, and how it is shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
import reports
from fp8parity.cli.blocks import table
from fp8parity.judging import speed
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.module_filter import filtered, propose, speeds
from fp8parity.judging.references import Goldens, pooling, store
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.records.cell import Mode
from fp8parity.records.schema import AnyRecord, Throughput, TimeSplit
from fp8parity.records.sets import load, machines, save
from fp8parity.records.storage import name_of
from fp8parity.records.times import Category, LinearTime, Split
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report
from timings import CELL, GPU, HERE, KV, POLICY, SAME, SHAPE, Q
from timings import made as timed
from timings import split as made


def test_slow_linears_are_proposed_with_their_gain():
    """k and v lose 0.1 ms each. Without that, a step of 10.2 ms takes 10.0 ms."""
    found = propose(made(Q, KV, SAME))
    assert found is not None and found.filters == ("k_proj", "v_proj")
    assert found.gain == pytest.approx(10.2 / 10.0)
    assert [s.names for s in speeds(made(Q, KV, SAME)) if s.slower] == ["attention.k_proj, attention.v_proj"]


def test_filter_names_no_other_linear():
    """An expert's down_proj is slow, and that of the shared expert is not."""
    slow, sound = ("mlp.experts.down_proj",), ("mlp.shared_expert.down_proj",)
    found = propose(made(KV.model_copy(update={"fqns": slow}), SAME.model_copy(update={"fqns": sound})))
    assert found is not None and found.filters == ("experts.down_proj",)


def test_without_a_slow_linear_nothing_is_proposed():
    assert propose(made(Q, SAME)) is None and propose(made()) is None
    assert "no filter is proposed" in table(made(Q, SAME))


def test_a_linear_has_its_ratio_and_what_all_its_copies_save():
    found = speeds(made(Q, SAME, KV, layers=3))
    assert [s.names.split(".")[-1] for s in found] == ["v_proj", "down_proj", "o_proj"], "the slowest first"
    assert [(s.ratio, s.low, s.high) for s in found] == [pytest.approx((r, r, r)) for r in (5 / 6, 1.0, 4 / 3)]
    assert [s.saved for s in found] == pytest.approx([-0.6e-3, 0.0, 3e-3])


def test_the_table_says_shares_linears_and_filter():
    text = table(made(Q, KV))
    assert " ".join(text.split()).startswith(
        "te-current-base-native, compiled, 4096 tokens a step BF16 share te-current share difference gemm 10.000 ms 80.0% "
    )
    assert "attention.k_proj, attention.v_proj: 0.83x" in text and text.count("slower") == 1
    assert "proposed filter: k_proj, v_proj stay in BF16; predicted gain +2.0%" in text
    assert max(map(len, text.splitlines())) <= 80


WITHOUT = "without k_proj v_proj"


def block_of(ratio: float, variant: str, **changes: Any) -> Throughput:
    return timed(ratio, variant=variant, **{"block": SHAPE} | changes)


def split_of(variant: str = "", **changes: Any) -> TimeSplit:
    return made(Q, KV, SAME).model_copy(update={"block": SHAPE, "variant": variant} | changes)


PLAIN, FILTERED = block_of(1.2, "eager"), block_of(1.25, f"eager {WITHOUT}")


class TestFiltered:
    def test_the_gain_is_the_ratio_of_both_speed_ups(self):
        [found] = filtered(split_of("eager"), [PLAIN, FILTERED])
        one, two = speed.measured(PLAIN), speed.measured(FILTERED)
        low, middle, high = found.gain
        assert middle == pytest.approx(1.25 / 1.2)
        assert math.log(middle / low) == pytest.approx(
            math.hypot(math.log(two.ratio / two.low), math.log(one.high / one.ratio))
        )
        assert math.log(high / middle) == pytest.approx(
            math.hypot(math.log(two.high / two.ratio), math.log(one.ratio / one.low))
        )
        assert low < middle < high
        assert found.variant == f"eager {WITHOUT}"

    @pytest.mark.parametrize(
        ("of", "records"),
        [
            (split_of(""), [PLAIN, FILTERED]),
            (split_of("eager"), [FILTERED]),
            (split_of("eager"), [PLAIN, block_of(1.1, "eager 1x32")]),
            (split_of("eager"), [PLAIN, block_of(1.1, f"1x32 {WITHOUT}")]),
            (split_of("eager"), [block_of(1.2, "eager", block=SHAPE.model_copy(update={"sequence": 8})), FILTERED]),
            (split_of("eager", block=SHAPE.model_copy(update={"sequence": 8})), [PLAIN, FILTERED]),
            (split_of("eager", cell=PLAIN.cell.model_copy(update={"recipe": "te-block"})), [PLAIN, FILTERED]),
            (split_of("eager"), [PLAIN, FILTERED.model_copy(update={"recipe_memory": 0})]),
            (split_of("", block=None), [block_of(1.2, "", block=None), block_of(1.25, WITHOUT, block=None)]),
        ],
        ids=[
            *("setting", "alone", "no filter", "other setting", "other shapes"),
            *("other block", "other cell", "unusable", "a step"),
        ],
    )
    def test_blocks_with_other_differences_do_not_count(self, of, records):
        assert filtered(of, records) == []

    def test_a_split_step_takes_any_block_of_its_model(self):
        whole = split_of("", block=None, layers=4)
        assert [f.variant for f in filtered(whole, [PLAIN, FILTERED])] == [FILTERED.variant]


@pytest.fixture(scope="module")
def report() -> Report:
    return Report([], {}, [], "m", Evidence([split_of("eager"), PLAIN, FILTERED]))


def test_a_report_shows_the_slowest_linear_first(report):
    rows = reports.texts(reports.tables(report)["Linears of te-current native, base, block, eager"])
    assert [row[0].split(",")[0] for row in rows] == ["attention.k_proj", "mlp.down_proj", "attention.q_proj"]
    assert rows[0][1:] == ["500.0", "600.0", "0.833 [0.833, 0.833] slower"] and rows[2][3] == "1.333 [1.333, 1.333]"


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
        for r in (
            timed(),
            timed(block=SHAPE),
            timed(block=SHAPE, variant="graphed"),
            SPLIT,
            timed(variant="length 512"),
        )
    ]
    parts = ("training-step", "block", "block-graphed", "block-split", "training-step-length-512")
    assert found == [f"te-current-base-native-topics-{part}.json" for part in parts]


def test_a_set_keeps_them_apart_and_whole(tmp_path):
    records: list[AnyRecord] = [timed(), timed(block=SHAPE), timed(block=SHAPE, variant="graphed"), SPLIT]
    save(records, tmp_path / "set")
    [machine] = machines(load([tmp_path / "set"]))
    assert machine.timings == {(CELL, "training-step"): records[0], (CELL, "block"): records[1]}
    assert machine.splits == {(CELL, "block-split"): SPLIT} and machine.variants == [records[2]]
    assert sorted(map(name_of, machine.records)) == sorted(map(name_of, records))


def test_a_block_is_held_to_the_golden_of_blocks(tmp_path):
    [first] = pooling.store(tmp_path, timed(1.5, block=SHAPE), POLICY)
    pooling.store(tmp_path, timed(1.2), POLICY)
    assert first.startswith(f"{GPU}, base block: + te-current native: ")
    stored = store.load(tmp_path, SpeedGolden)
    assert set(stored) == {(GPU, "base", "training-step"), (GPU, "base", "block")}
    [found] = evaluate([timed(1.5, block=SHAPE), timed(1.2)], Goldens(throughput=stored), POLICY)
    assert [(v.check, v.status) for v in found.verdicts] == [("block throughput", "pass"), ("throughput", "pass")]


def test_times_of_another_setting_are_shown_and_neither_judged_nor_stored(tmp_path):
    other = timed(block=SHAPE, variant="sequence 8192")
    [found] = evaluate([other, SPLIT], Goldens(), POLICY)
    assert found.verdicts == ()
    with pytest.raises(ValueError, match="its setting is not that of the suite: sequence 8192"):
        pooling.store(tmp_path, other, POLICY)
