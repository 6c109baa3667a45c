"""Training-step times: interleaving, the two-sided verdict, disturbed GPUs, goldens by GPU. No GPU: clocks and NVML are made up."""

from __future__ import annotations

import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import reports
import torch
from fp8parity import bench, corpus, judge_speed, recipes, tolerances, watch
from fp8parity.models import ModelConfig
from fp8parity.record import CellKey, Throughput, Watch
from fp8parity.schedule import Schedule
from fp8parity.session import Preset
from fp8parity.statistics import median_interval
from fp8parity.storage import load_record, write_json
from fp8parity.tolerances import SpeedRow

GPU = "NVIDIA Made Up"
ROW = SpeedRow(band=0.05, memory_band=0.05, why="made up for the tests")
CALM = Watch(busy_before=0, sm_clocks=[1980] * 22, throttled=[])
HERE = reports.provenance(device=GPU)
NANO = Preset(
    ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128),
    Schedule(steps=12, rows=2, length=64, lr=1e-3),
)
CELL = CellKey(model="base", recipe="te-current", execution="native", corpus="synthetic")


def made(ratio: float = 1.2, spread: float = 0.002, pairs: int = 11, **changes: object) -> Throughput:
    """A calm record whose pairs have ratios around ``ratio``, with ``spread`` as their standard deviation."""
    noise = np.linspace(-1.6, 1.6, pairs) * spread
    base = Throughput(
        cell=CELL, mode="compiled", tokens=16384, steps_a_block=2, bf16_seconds=[0.4] * pairs,
        recipe_seconds=[0.4 / (ratio * (1 + float(x))) for x in noise], bf16_memory=20 * 2**30, recipe_memory=18 * 2**30,
        flops_per_token=2e9, peak_flops=989e12, watch=CALM, provenance=HERE, session="s",
    )  # fmt: skip
    return base.model_copy(update=changes)


@pytest.fixture
def golden(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    judge_speed.store(tmp_path, made(), ROW)
    return judge_speed.load(tmp_path, GPU, "base")


def calm_but(**changes: object) -> Watch:
    return CALM.model_copy(update=changes)


@pytest.mark.parametrize(
    ("run", "status", "words"),
    [
        (made(), "pass", "inside the golden's band"),
        (made(1.2 * 0.9), "fail", "slower: 1.080x BF16, golden 1.200x"),
        (made(1.2 * 1.1), "improved", "faster or smaller than the golden"),
        (made(1.2 * 0.96), "pass", "inside"),
        (made(1.2 * 1.04), "pass", "inside"),
        (made(1.2 * 0.95, spread=0.02), "inconclusive", "crosses"),
        (made(1.2 * 1.05, spread=0.02), "inconclusive", "crosses"),
        (made(spread=0.1), "inconclusive", "crosses"),
        (made(recipe_memory=20 * 2**30), "fail", "more memory: 1.000 of BF16's, golden 0.900"),
        (made(recipe_memory=16 * 2**30), "improved", "faster or smaller"),
        (made(1.2 * 0.9, recipe_memory=16 * 2**30), "fail", "slower"),
        (made(1.2 * 0.95, spread=0.02, recipe_memory=16 * 2**30), "inconclusive", "crosses"),
        (made(mode="eager"), "stale", "the golden's step had mode compiled, this one's eager"),
        (made(tokens=8192), "stale", "had tokens"),
        (made(flops_per_token=1.0), "stale", "had flops_per_token"),
        (made(pairs=7), "inconclusive", "7 pairs; 8 are needed"),
        (made(watch=None), "inconclusive", "was not watched"),
        (made(watch=calm_but(busy_before=40)), "inconclusive", "40% busy before the first block: something else runs"),
        (made(watch=calm_but(busy_after=40)), "inconclusive", "40% busy after the last block: something else runs"),
        (made(watch=calm_but(busy_before=5)), "pass", "inside"),
        (made(watch=calm_but(busy_after=5)), "pass", "inside"),
        (made(watch=calm_but(busy_after=None)), "pass", "inside"),
        (made(watch=calm_but(throttled=["hardware thermal"])), "inconclusive", "throttled: hardware thermal"),
        (made(1.2 * 0.9, watch=calm_but(throttled=["power brake"])), "inconclusive", "power brake"),
        (made(1.2 * 1.1, watch=calm_but(busy_before=99)), "inconclusive", "99% busy"),
        (made(recipe_seconds=[math.nan] * 11), "inconclusive", "crosses"),
    ],
)  # fmt: skip
def test_each_status(golden, run, status, words):
    found = judge_speed.throughput(run, golden, ROW)
    assert found.status == status, found.message()
    assert words in found.headline
    assert found.green == (status in ("pass", "improved"))


def test_the_numbers_shown_are_those_of_the_blocks():
    found = judge_speed.speed(made(1.25, spread=0.0))
    assert (found.ratio, found.low, found.high, found.pairs) == pytest.approx((1.25, 1.25, 1.25, 11))
    assert found.bf16_tokens_per_second == pytest.approx(16384 * 2 / 0.4)
    assert found.tokens_per_second == pytest.approx(16384 * 2 / 0.4 * 1.25)
    assert found.bf16_mfu == pytest.approx(81920 * 2e9 / 989e12)
    assert found.mfu == pytest.approx(1.25 * 81920 * 2e9 / 989e12)
    assert judge_speed.speed(made(peak_flops=None)).mfu is None


def test_an_unknown_gpu_has_no_golden_and_shows_what_it_did(tmp_path, golden):
    other = made(provenance=HERE.model_copy(update={"device": "NVIDIA Other"}))
    assert judge_speed.load(tmp_path, "NVIDIA Other", "base") is None
    found = judge_speed.throughput(other, None, ROW)
    assert (found.status, found.green) == ("no-golden", False)
    assert "te-current native on NVIDIA Other" in found.headline
    assert dict(found.lines)["speed"].startswith("1.200x BF16 [") and "98,304 tokens/s" in dict(found.lines)["speed"]
    assert dict(found.lines)["memory"] == "18.0 GiB, BF16 20.0 GiB"
    unknown = made(cell=CELL.model_copy(update={"recipe": "te-block"}))
    assert judge_speed.throughput(unknown, golden, ROW).status == "no-golden"


def test_two_gpus_whose_names_make_one_path_do_not_share_a_golden(tmp_path, golden):
    assert judge_speed.path_of(tmp_path, "NVIDIA-Made-Up", "base") == judge_speed.path_of(tmp_path, GPU, "base")
    with pytest.raises(ValueError, match="base.json: is of base on NVIDIA Made Up, not of base on NVIDIA-Made-Up"):
        judge_speed.load(tmp_path, "NVIDIA-Made-Up", "base")


def test_goldens_keep_their_other_cells_and_say_what_changed(tmp_path, golden):
    other = made(1.3, cell=CELL.model_copy(update={"recipe": "ao-rowwise"}))
    assert judge_speed.store(tmp_path, other, ROW) == [f"{GPU}, base, ao-rowwise native: 1.300x"]
    assert judge_speed.store(tmp_path, made(1.26), ROW) == [f"{GPU}, base, te-current native: 1.260x (was 1.200x, +0.060)"]
    stored = judge_speed.load(tmp_path, GPU, "base")
    assert {n: round(e.ratio, 3) for n, e in stored.cells.items()} == {"ao-rowwise native": 1.3, "te-current native": 1.26}
    path = judge_speed.path_of(tmp_path, GPU, "base")
    path.write_text(path.read_text().replace('"pairs": 11', '"pairs": 12', 1))
    with pytest.raises(ValueError, match=r"base.json: its checksum does not match"):
        judge_speed.load(tmp_path, GPU, "base")


@pytest.mark.parametrize(
    ("run", "ci", "words"),
    [
        (made(), True, "CI never records"),
        (made(provenance=HERE.model_copy(update={"dirty": True})), False, "uncommitted changes"),
        (made(watch=None), False, "was not watched"),
        (made(watch=calm_but(throttled=["hardware slowdown"])), False, "hardware slowdown"),
        (made(watch=calm_but(busy_before=30)), False, "30% busy"),
        (made(pairs=7), False, "7 pairs"),
    ],
)
def test_what_may_not_become_a_golden(tmp_path, monkeypatch, run, ci, words):
    monkeypatch.setenv("CI", "true") if ci else monkeypatch.delenv("CI", raising=False)
    with pytest.raises(ValueError, match=f"throughput golden of te-current-base-native refused: .*{words}"):
        judge_speed.store(tmp_path, run, ROW)
    assert not (tmp_path / "throughput").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('band = 0.7\nmemory_band = 0.05\nwhy = "long enough"', "tolerances.toml:3: [[speed]] key band"),
        ('band = 0.05\nwhy = "long enough"', "tolerances.toml:3: [[speed]] key memory_band"),
        ('band = 0.05\nmemory_band = 0.05\nbusy = 101\nwhy = "long enough"', "tolerances.toml:3: [[speed]] key busy"),
        ('band = 0.05\nmemory_band = 0.05\nleast_pairs = 5\nwhy = "long enough"', "tolerances.toml:3: [[speed]] key least_pairs"),
        ('band = 0.05\nmemory_band = 0.05\nbnad = 1\nwhy = "long enough"', "tolerances.toml:3: [[speed]] key bnad"),
        ("band = 0.05\nmemory_band = 0.05", "tolerances.toml:3: [[speed]] key why"),
    ],
)
def test_a_bad_row_names_file_line_and_key(tmp_path, text, words):
    path = tmp_path / "tolerances.toml"
    path.write_text(f"# one\n# two\n[[speed]]\n{text}\n")
    with pytest.raises(ValueError, match=re.escape(words)):
        tolerances.load(path)


def test_without_a_row_a_cell_is_not_judged(session):
    empty = session.tolerances.model_copy(update={"speed": []})
    with pytest.raises(ValueError, match=r"no \[\[speed\]\] row matches te-current-base-native"):
        empty.speed_row(CELL)
    assert session.tolerances.speed_row(CELL).band > 0


def test_a_record_keeps_every_bit(tmp_path):
    assert load_record(write_json(tmp_path / "t.json", made())) == made()


def test_the_interval_covers_the_median_as_often_as_it_says():
    """11 pairs of skewed ratios: the interval is the 2nd to the 10th, so the binomial errs by 12/2048 on each side."""
    rng = np.random.default_rng(0)
    found = [median_interval(rng.lognormal(0.1, 0.4, 11).tolist()) for _ in range(4000)]
    above, below = sum(low > math.exp(0.1) for _, low, _ in found), sum(high < math.exp(0.1) for _, _, high in found)
    assert 0.002 < above / 4000 < 0.011 and 0.002 < below / 4000 < 0.011
    assert median_interval(range(1, 7)) == (3.5, 1, 6)
    with pytest.raises(ValueError, match="5 values are too few for a 95% interval"):
        median_interval(range(5))


# The bench


class Machine:
    """A machine under a made-up clock: a recipe's step takes its seconds, times a slow-down that grows with the clock."""

    def __init__(self, drift: float = 0.0) -> None:
        self.now, self.drift, self.order = 0.0, drift, []

    def side(self, name: str, seconds: float) -> SimpleNamespace:
        def run(number: int) -> float:
            self.order.append(name)
            took = number * seconds * (1 + self.drift * self.now)
            self.now += took
            return took

        return SimpleNamespace(run=run, memory=1)


def timed(monkeypatch, machine: Machine) -> Throughput:
    """``bench.measure`` on a machine whose recipe takes 1 / 1.25 of BF16's time."""
    seconds = {"bf16": 0.025, "te-current": 0.02}
    monkeypatch.setattr(bench, "_side", lambda config, recipe, *_: machine.side(recipe.name, seconds[recipe.name]))
    recipe = recipes.get("te-current")
    return bench.measure(NANO.model, recipe, "emulated", NANO.schedule, corpus.load("synthetic"), device=torch.device("cpu"), session="s")


def test_blocks_alternate(monkeypatch):
    machine = Machine()
    run = timed(monkeypatch, machine)
    assert machine.order[-22:] == ["bf16", "te-current"] * 11
    assert run.steps_a_block == 10  # 0.25 s of BF16
    assert run.bf16_seconds == pytest.approx([0.25] * 11) and run.recipe_seconds == pytest.approx([0.2] * 11)


def test_a_machine_that_slows_down_does_not_bias_the_ratio(monkeypatch):
    """The clock slows a block by a fifth and more over the session. A B A B is off by a block's worth; A A B B would be red."""
    machine = Machine(drift=0.05)
    run = timed(monkeypatch, machine)
    assert run.bf16_seconds[-1] / run.bf16_seconds[0] > 1.2
    found = judge_speed.speed(run)
    assert abs(found.ratio / 1.25 - 1) < 0.015
    apart = Machine(drift=0.05)
    plain, ours = apart.side("bf16", 0.025), apart.side("te-current", 0.02)
    first, second = [plain.run(10) for _ in range(11)], [ours.run(10) for _ in range(11)]
    assert np.median(np.divide(first, second)) / 1.25 - 1 < -0.08


def test_the_bench_runs_real_steps_on_a_cpu_and_nothing_gates_them(eager):
    run = bench.measure(
        NANO.model, recipes.get("te-current"), "emulated", NANO.schedule, corpus.load("synthetic"),
        device=torch.device("cpu"), mode="eager", pairs=8,
    )  # fmt: skip
    assert len(run.bf16_seconds) == len(run.recipe_seconds) == 8
    assert all(0 < s < 60 for s in (*run.bf16_seconds, *run.recipe_seconds))
    assert judge_speed.speed(run.model_copy(update={"peak_flops": None})).ratio < 1  # the emulation is slower than BF16
    assert (run.watch, run.mode, run.tokens) == (None, "eager", 128)
    assert judge_speed.throughput(run.model_copy(update={"bf16_memory": 1}), None, ROW).status == "inconclusive"


def test_a_step_that_is_not_finite_has_no_time():
    side = bench._Side(lambda batches, number: torch.tensor([1.0, math.nan]), [[]], torch.device("cpu"))
    with pytest.raises(ValueError, match="a timed step gave a value that is not finite"):
        side.run(2)


def test_model_flops_by_hand():
    c = NANO.model  # dim 64, 1 layer, 2 heads and 1 kv head of 32, hidden 128
    matrices = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + c.vocab * 64
    vectors = c.parameters - matrices - (0 if c.tied else c.vocab * 64)
    assert 0 < vectors < 400  # norms: counted as parameters, no products
    assert bench.flops_per_token(c, 32) == 6 * (matrices + vectors) + 6 * 64 * 32
    assert bench.flops_per_token(c, 64) - bench.flops_per_token(c, 32) == 6 * 64 * 32
    assert bench.peak_flops("NVIDIA H200") == 989e12 and bench.peak_flops(GPU) is None


# The watch


class FakeNvml(SimpleNamespace):
    """NVML of one GPU; ``used``, ``reasons`` and ``clocks`` are consumed a sample each."""

    def __init__(self, used: list[int], reasons: list[int], clocks: list[int]) -> None:
        busy, left, speeds = iter(used), iter(reasons), iter(clocks)
        super().__init__(
            NVML_CLOCK_SM=1,
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByUUID=lambda name: name,
            nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=next(busy)),
            nvmlDeviceGetClockInfo=lambda handle, kind: next(speeds),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: next(left),
        )


def watched(monkeypatch, used=(0, 0), reasons=(0, 0, 0), clocks=(1980, 1980, 1980)) -> Watch:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(list(used), list(reasons), list(clocks)))
    monkeypatch.setattr(watch, "SETTLE", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda d: SimpleNamespace(uuid="x"))
    watcher = watch.Watcher(torch.device("cuda:0"))
    for _ in reasons:
        watcher.sample()
    return watcher.result()


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({}, "pass", "inside"),
        ({"used": (63, 0)}, "inconclusive", "63% busy before"),
        ({"used": (0, 63)}, "inconclusive", "63% busy after"),
        ({"reasons": (0, 0x40, 0), "clocks": (1980, 1200, 1980)}, "inconclusive", "hardware thermal"),
        ({"reasons": (0, 0x8, 0x80)}, "inconclusive", "hardware slowdown, power brake"),
        ({"reasons": (0x20, 0, 0)}, "inconclusive", "software thermal"),
        ({"reasons": (0x1, 0x2, 0x4)}, "pass", "inside"),  # idle, application clocks, power cap
    ],
)
def test_what_nvml_says_reaches_the_verdict(monkeypatch, golden, options, status, words):
    found = judge_speed.throughput(made(watch=watched(monkeypatch, **options)), golden, ROW)
    assert found.status == status and words in found.headline


def test_the_watch_keeps_every_clock(monkeypatch):
    assert watched(monkeypatch, (3, 4), (0, 0x40, 0), (1980, 1200, 1500)) == Watch(
        busy_before=3, busy_after=4, sm_clocks=[1980, 1200, 1500], throttled=["hardware thermal"]
    )


def test_without_nvml_there_is_no_watch(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    watcher = watch.Watcher(torch.device("cuda:0"))
    watcher.sample()
    assert watcher.result() is None
