"""What becomes a golden: BF16 runs, the noise of recipes, and sessions of times that are pooled or replaced."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gemm_records
import pytest
import timings
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references import loss, noise, pooling, store
from fp8parity.judging.references.loss import Golden
from fp8parity.judging.references.timed import Entry, GemmGolden, SpeedGolden
from fp8parity.records.cell import Execution
from fp8parity.records.gemms import Accumulation
from fp8parity.records.schema import NonFinite, Trajectory
from fp8parity.records.storage import write_json
from gemm_records import slower
from narrowed import some
from paired import SEEDS, Make
from timings import HERE, calm_but

DIRTY: dict[str, Any] = {"provenance": HERE.model_copy(update={"dirty": True})}


class TestLoss:
    @pytest.mark.parametrize(
        ("made", "least", "words"),
        [
            ({}, 8, "1 seeds; golden/policy.toml asks for 8"),
            ({"recipe": "te-current"}, 1, "never becomes its own reference"),
            ({"non_finite": NonFinite(step=2, where="x")}, 1, "non-finite at step 2 (x)"),
            ({"loss": [math.nan] * 12}, 1, "key seeds.0.loss.0: Input should be"),
            ({"schedule": {"steps": 12, "tail": -5}}, 1, "schedule: tail is -5"),
            (DIRTY, 1, "the working tree has uncommitted changes"),
        ],
    )
    def test_unsuitable_runs_are_refused(self, trajectory, tmp_path, made, least, words):
        assert words in some(loss.refuse([trajectory(**made)], least))
        with pytest.raises(ValueError, match="^golden of nano refused: "):
            loss.store(tmp_path, [trajectory(**made)], [], least)
        assert not list(tmp_path.iterdir())

    def test_runs_in_ci_are_refused(self, trajectory, monkeypatch):
        monkeypatch.setenv("CI", "true")
        assert "CI never records goldens" in some(loss.refuse([trajectory()], 1))

    @pytest.mark.parametrize(
        ("changes", "why"),
        [
            ({}, None),
            ({"seed": 99, "initial_weights": "other"}, None),
            ({"spec_hash": "other"}, "its model, what it keeps in BF16, or schedule differ from the golden's"),
            ({"fingerprint": "fedcba9876543210"}, "(fingerprint fedcba987654, golden"),
            ({"schedule": {"tail": 20.0, "more": 1.0}}, "its schedule has tail 20, and the golden's has 40"),
            ({"initial_weights": "other"}, "seed 1 starts from other initial weights"),
        ],
        ids=str,
    )
    def test_run_of_another_work_is_stale(self, golden, run, changes, why):
        made = run("te-current", 1)
        changes = changes | {"schedule": made.schedule | changes.get("schedule", {})}
        found = golden.stale(made.model_copy(update=changes))
        assert found is why if why is None else why in found

    @pytest.mark.parametrize(
        ("changes", "kept"), [({}, True), ({"spec_hash": "other"}, False), ({"fingerprint": "other"}, False)], ids=str
    )
    def test_noise_stays_with_runs_of_the_same_work(self, golden, run, tmp_path, changes, kept):
        path = write_json(tmp_path / golden.path, golden)
        loss.store(tmp_path, [run(seed=s, **changes) for s in SEEDS], [], len(SEEDS))
        assert store.read(path, Golden).noise == (golden.noise if kept else [])


NATIVE = LossRow(margin=0.001, execution=(Execution.NATIVE,), seeds=(3,), why="made-up native runs")
EMULATED = LossRow(margin=0.001, execution=(Execution.EMULATED,), seeds=(2, 3), why="made-up emulated runs")
APART = LossRow(margin=0.002, recipe=("te-block", "te-mxfp8"), why="made-up runs of others")


class TestNoise:
    @pytest.fixture
    def bare(self, golden: Golden) -> Golden:
        return golden.model_copy(update={"noise": []})

    def runs(self, run: Make, recipe: str, count: int, execution: str = "native") -> list[Trajectory]:
        made = [run(recipe, seed, 3) for seed in range(count)]
        return [
            r.model_copy(update={"cell": r.cell.model_copy(update={"execution": Execution(execution)})}) for r in made
        ]

    def stored(self, folder: Path, bare: Golden, records: list[Trajectory], *rows: LossRow) -> tuple[Any, list[str]]:
        write_json(folder / bare.path, bare)
        lines = noise.store(folder, records, Policy(path=Path("policy.toml"), loss=rows))
        [golden] = store.load(folder, Golden).values()
        return [(s.recipes, len(s.runs), s.seeds) for s in golden.noise], lines

    def pairs(self, run: Make, *recipes: str) -> list[noise.Pair]:
        return [(run(recipe, seed, 3), run(seed=seed)) for recipe in recipes for seed in range(3)]

    def test_recipes_of_equal_rows_share_their_noise(self, bare, run, tmp_path):
        records = [run(seed=s) for s in range(4)] + self.runs(run, "te-current", 3)
        records += self.runs(run, "te-nvfp4", 3, "emulated") + self.runs(run, "te-block", 3)
        found, _ = self.stored(tmp_path, bare, records, NATIVE, EMULATED, APART)
        assert found == [(["te-current", "te-nvfp4"], 6, 3), (["te-block"], 3, 3)]

        first = noise.add_noise(bare, self.pairs(run, "te-current"), 8)
        both = noise.add_noise(first, self.pairs(run, "te-block", "te-mxfp8"), 8)
        again = noise.add_noise(both, self.pairs(run, "te-current")[:2], 16)
        assert [(s.recipes, len(s.runs), s.window) for s in again.noise] == [
            (["te-block", "te-mxfp8"], 6, 8),
            (["te-current"], 2, 16),
        ]
        with pytest.raises(
            ValueError, match="^the noise of te-mxfp8 rests on the same row; give runs of these recipes"
        ):
            noise.add_noise(both, self.pairs(run, "te-block"), 8)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (DIRTY, "uncommitted"),
            ({"spec_hash": "x"}, "spec hash"),
            ({"non_finite": NonFinite(step=1, where="x")}, "stopped"),
        ],
    )
    def test_unsuitable_runs_are_refused(self, bare, run, changes, words):
        bad = [(r.model_copy(update=changes), c) for r, c in self.pairs(run, "te-current")]
        with pytest.raises(ValueError, match=words):
            noise.add_noise(bare, bad, 8)


HOT = calm_but(sm_clocks=[1500] * 22, power_capped=0.5)
UPGRADED = HERE.model_copy(update={"packages": {**HERE.packages, "torch": "3.0"}})


def entry_after(folder: Path, *records: Any) -> Any:
    """The entry after these records were stored one after the other."""
    kind: type[Any] = SpeedGolden
    for record in records:
        kind = GemmGolden if hasattr(record, "gemms") else SpeedGolden
        pooling.store(folder, record, timings.POLICY)
    [entry] = store.load(folder, kind).popitem()[1].cells.values()
    assert isinstance(entry, Entry)
    return entry


class TestTimes:
    def test_sessions_are_pooled(self, tmp_path):
        """Geometric means in which each session counts once, and the widest interval."""
        first, second, third = (
            timings.made(r, session=s, watch=w)
            for r, s, w in ((1.2, "a", timings.CALM), (1.24, "b", HOT), (1.22, "c", timings.CALM))
        )
        one, two = entry_after(tmp_path, first), entry_after(tmp_path, second)
        assert (two.sessions, two.pairs, two.power_capped) == (["a", "b"], 22, None)
        assert two.ratio == pytest.approx((1.2 * 1.24) ** 0.5)
        assert [two.low, two.high] == pytest.approx([one.low, 1.24 / 1.2 * one.high])
        assert two.clock == pytest.approx((1980 * 1500) ** 0.5)
        assert entry_after(tmp_path, first) == two  # it counts already
        assert entry_after(tmp_path, third).ratio == pytest.approx((1.2 * 1.24 * 1.22) ** (1 / 3))

    @pytest.mark.parametrize(
        ("second", "sessions"),
        [
            (timings.made(1.2, session="b"), ["s", "b"]),
            (timings.made(1.3, session="b"), ["b"]),  # outside the band of 5%
            (timings.made(1.2, session="b", recipe_memory=22 * 2**30), ["b"]),
            (timings.made(1.2, session="b", provenance=UPGRADED), ["b"]),
            (gemm_records.made(training=1.6 * 1.04, session="b"), ["s", "b"]),
            (gemm_records.made(training=1.6 * 1.06, session="b"), ["b"]),
            (slower(gemm_records.made(session="b"), 1.09), ["s", "b"]),
            (slower(gemm_records.made(session="b"), 1.12), ["b"]),  # BF16's own rate
            (
                gemm_records.changed(gemm_records.made(session="b"), "up wgrad kernel", accumulation=Accumulation.FAST),
                ["b"],
            ),
        ],
    )
    def test_another_session_is_pooled_only_within_the_bands(self, tmp_path, second, sessions):
        first = gemm_records.made() if hasattr(second, "gemms") else timings.made()
        assert entry_after(tmp_path, first, second).sessions == sessions

    @pytest.mark.parametrize(
        ("record", "words"),
        [
            (timings.made(**DIRTY), "uncommitted changes"),
            (timings.made(watch=None), "was not watched"),
            (timings.made(watch=calm_but(throttled=["hardware slowdown"])), "hardware slowdown"),
            (timings.made(pairs=7), "7 pairs"),
            (timings.made(spread=0.03), r"interval of its ratio is 7\.7% wide, and the band is \+-5\.0%"),
            (timings.made(variant="x"), "its setting is not that of the suite: x"),
            (gemm_records.made(tool="te-benchmark"), "it imitates another tool"),
            (gemm_records.made(micro_batch=0), "a list of shapes has no golden"),
        ],
    )  # fmt: skip
    def test_unsuitable_times_are_refused(self, tmp_path, record, words):
        with pytest.raises(ValueError, match=f"golden of te-current-.*-native refused: .*{words}"):
            pooling.store(tmp_path, record, timings.POLICY)
        assert not (tmp_path / "throughput").exists()
