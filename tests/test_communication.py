"""The model of communication: bytes of FSDP2 by hand, a link from times, and ranges that hold what was measured."""

from __future__ import annotations

import pytest
import weak_scaling as script
from fp8parity.distributed.arms import ARMS
from fp8parity.prediction import weak_scaling
from fp8parity.prediction.communication import Link, Range, link, shared_seconds, step, traffic
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.workload.presets import presets
from sessions import cell

NVLINK = Link(seconds_per_byte=1 / 300e9, seconds_per_turn=5e-6)
AT_400_MS = Range(0.4, 0.4)
MICRO = {"blocks": 2, "block": 49_280, "rest": 32_832}
"""Parameters of micro: 49,152 in the linears of a block, and 128 in its norms."""


def test_the_bytes_are_those_that_two_gloo_ranks_sent():
    """Measured with the flight recorder (pytest suites/distributed -k sharded): 459,904 bytes gathered in BF16, 525,568 reduced."""
    plain = traffic(**MICRO, converted=49_152 / 49_280, weight=2)
    assert (plain.gathered, plain.reduced, plain.calls) == (459_904, 525_568, 8)
    half = traffic(**MICRO, converted=49_152 / 49_280, weight=1)
    assert half.gathered == pytest.approx(263_296)


def test_the_script_counts_the_same_bytes_from_a_model():
    assert script.sent(presets()["micro"].model, 2) == traffic(**MICRO, converted=49_152 / 49_280, weight=2)


def test_the_script_says_whether_a_measured_rate_is_inside(timed):
    [(of, found)] = weak_scaling.rows([timed(1, 40_000, 48_000), timed(2, 40_500, 30_000)]).items()
    said = script.lines(of, found, 3e12, NVLINK, Link(1 / 50e9, 20e-6), [2, 8, 256])
    assert "measured 40,500 (inside)" in said[0] and "measured 30,000 (OUTSIDE)" in said[0]
    assert [line.split(":")[0] for line in said] == ["2 ranks", "8 ranks", "256 ranks"] and "measured" not in said[2]


def test_a_link_is_found_from_its_own_times():
    times = [(size, 0.5 * size / 300e9 + 5e-6) for size in (2**20, 2**23, 2**26, 2**28)]
    found = link(times, ranks=2)
    assert found.bandwidth == pytest.approx(300e9, rel=1e-6)
    assert found.seconds_per_turn == pytest.approx(5e-6, rel=1e-6)


@pytest.mark.parametrize(("times", "ranks"), [([], 2), ([(1.0, 1.0)], 2), ([(1.0, 1.0), (2.0, 2.0)], 1)])
def test_a_link_needs_times_of_two_sizes_on_two_ranks(times, ranks):
    with pytest.raises(ValueError, match="times of at least two sizes on at least two ranks"):
        link(times, ranks)


def test_one_rank_sends_nothing_and_more_ranks_send_more():
    sent = traffic(24, 46e6, 1.0, 1e6, weight=2)
    assert step(AT_400_MS, 0.0, sent, {"host": NVLINK}, 1) == AT_400_MS
    highs = [step(AT_400_MS, 0.0, sent, {"host": NVLINK}, n).high for n in (2, 8, 256)]
    assert highs == sorted(highs) and highs[0] > 0.4


def test_by_hand_on_two_ranks():
    sent = traffic(1, 1e9, 1.0, 0, weight=1, gradient=4)
    spent = 0.5 * (2e9 + 4e9) / 300e9 + sent.calls * 5e-6
    found = step(Range(0.1, 0.11), 0.0, sent, {"host": NVLINK}, 2)
    assert found.low == 0.1 and found.high == pytest.approx(0.11 + spent)
    assert step(Range(0.001, 0.001), 0.0, sent, {"host": NVLINK}, 2).low == pytest.approx(spent)  # the link decides


def test_what_a_rank_does_to_its_shard_is_shared_at_best():
    """1b on an H100: 1.16e9 parameters of 76 bytes at 2.4 TB/s are 37 ms. Two ranks save at most half of it, many ranks all of it."""
    shared = shared_seconds(1.16e9, 2.4e12)
    assert shared == pytest.approx(0.0367, abs=1e-4)
    sent, free = traffic(24, 46e6, 1.0, 1e6, weight=2), Link(0.0, 0.0)
    found = [step(AT_400_MS, shared, sent, {"host": free}, n) for n in (1, 2, 1000)]
    assert [r.low for r in found] == pytest.approx([0.4, 0.4 - shared / 2, 0.4 - 0.999 * shared])
    assert all(r.high == 0.4 for r in found)


@pytest.mark.parametrize(
    ("arm", "weight"), [("fsdp", 2), ("bf16 parameters", 2), ("fp8 all-gather", 1), ("fp8 primary weights", 1)]
)
def test_a_converted_weight_travels_in_fp8_where_the_arm_says_so(arm, weight):
    assert [a.weight_bytes for a in ARMS if a.name == arm] == [weight]


def test_a_range_covers_all_links():
    sent = traffic(24, 46e6, 1.0, 1e6, weight=2)
    network = Link(1 / 40e9, 20e-6)
    short = Range(0.01, 0.01)
    both = step(short, 0.0, sent, {"host": NVLINK, "network": network}, 256)
    assert both.low == step(short, 0.0, sent, {"host": NVLINK}, 256).low
    assert both.high == step(short, 0.0, sent, {"network": network}, 256).high


def test_a_range_is_two_sided():
    found = Range(0.4, 0.5)
    assert [found.holds(t) for t in (0.39, 0.4, 0.5, 0.51)] == [False, True, True, False]
    assert found.holds(0.39, slack=0.03) and not found.holds(0.38, slack=0.03)


@pytest.fixture
def timed(trajectory):
    def made(ranks: int, bf16: float, recipe: float) -> Measurements:
        of = cell("ao-tensorwise", "native", "1b").model_copy(update={"ranks": ranks})
        values = [
            Measurement(metric=weak_scaling.RATE, where=f"{side} pair {i}", value=rate * (1 + 0.01 * (i - 1)))
            for side, rate in (("bf16", bf16), ("recipe", recipe))
            for i in range(3)
        ]
        values.append(Measurement(metric="memory to bf16", where="a rank", value=0.97))
        values += [
            Measurement(metric="seconds of all-gather", where=f"{n} bytes", value=n / 600e9 + 5e-6)
            for n in (2**20, 2**26)
        ]
        return Measurements(
            cell=of, check=weak_scaling.CHECK, values=values, provenance=trajectory().provenance, session="s"
        )

    return made


def test_each_percentage_has_one_definition(timed):
    """SageMaker's 1B row of 32 nodes: 33,500 -> 38,000 tokens/s/GPU, against 40,200 -> 40,800 on one."""
    [found] = weak_scaling.rows([timed(8, 33_500, 38_000), timed(1, 40_200, 40_800)]).values()
    assert [r.ranks for r in found] == [1, 8]
    assert found[1].faster == pytest.approx(0.1343, abs=1e-4)
    assert found[1].decrease == pytest.approx((0.1667, 0.0686), abs=1e-4)


def test_the_table_shows_what_is_there(timed):
    [found] = weak_scaling.rows([timed(2, 100.0, 120.0)]).values()
    assert weak_scaling.table(found)[1] == ["2", "100", "120", "+20.0%", "-", "-", "0.97x"]
    assert weak_scaling.measured_link(timed(2, 1, 1)).bandwidth == pytest.approx(300e9, rel=1e-3)


def test_a_gpu_without_a_profile_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(script, "PROFILES", tmp_path)
    with pytest.raises(SystemExit, match="nvidia-b200.zip: no profile of NVIDIA B200; `fp8parity profile"):
        script.moved("NVIDIA B200")


@pytest.mark.parametrize(("name", "sides"), [("h100-x2", 4), ("h200-x2", 4), ("h200-x4", 16)])
def test_the_shipped_rates_of_several_ranks_are_those_that_one_rank_predicts(capsys, monkeypatch, name, sides):
    monkeypatch.setattr(
        "sys.argv", ["weak_scaling.py", str(script.GOLDEN / "records" / f"{name}.zip"), "--ranks", "2", "4"]
    )
    script.main()
    printed = capsys.readouterr().out
    assert (printed.count("(inside)"), printed.count("(OUTSIDE)")) == (sides, 0)
