"""What the gate is worth: rules of other projects on examples computed by hand, simulated verdicts, and the page docs/evidence.md."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import evidence
import head_to_head
import many
import numpy as np
import peers
import pytest
import severity
import simulated
import trials
from fp8parity.judging import loss, stats
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.records.cell import Cell
from fp8parity.records.schema import AnyRecord, Trajectory
from fp8parity.records.storage import load_records
from many import Curves
from sessions import stored

ROOT = Path(__file__).parents[1]
TINY, MICRO, XEON = (
    ROOT / "golden" / "records" / f"{name}.zip" for name in ("calibration/tiny", "micro-h100", "micro-xeon")
)
NAN = math.nan


@cache
def references() -> tuple[Goldens, Policy]:
    kept, rules = stored()
    return kept, rules.model_copy(update={"known": None})


@cache
def records(path: Path) -> list[AnyRecord]:
    return load_records(path)


@cache
def model(path: Path) -> trials.Model:
    [found] = trials.models([records(path)], *references())
    return found


@cache
def results() -> list[head_to_head.Judged]:
    return list(head_to_head.judged(model(TINY), references()[0]))


def curve(steps: int, far: int, by: float = 1.2) -> list[float]:
    """A loss of 1, and of ``by`` in the first ``far`` steps."""
    return [by] * far + [1.0] * (steps - far)


def test_megatron_exact_compares_five_decimals():
    assert not peers.megatron_exact([1.000001], [1.000002])
    assert peers.megatron_exact([1.00001], [1.00002])
    assert peers.megatron_exact([NAN], [1.0])


@pytest.mark.parametrize(("steps", "far", "red"), [(200, 2, False), (200, 3, True), (50, 1, False), (50, 2, True)])
def test_megatron_allows_one_far_step_in_a_hundred(steps: int, far: int, red: bool):
    assert peers.megatron_close(curve(steps, far), curve(steps, 0)) == red


def test_megatron_as_shipped_was_green_with_two_close_steps_of_two_hundred():
    assert not peers.megatron_close(curve(200, 198), curve(200, 0), inverted=True)
    assert peers.megatron_close(curve(200, 199), curve(200, 0), inverted=True)
    assert peers.megatron_close([NAN] * 200, curve(200, 0), inverted=True)


def falling(scale: float = 1.0, last: float = 1.0) -> list[float]:
    loss = [scale * (4 - 0.02 * i) for i in range(100)]
    return [*loss[:-1], loss[-1] * last]


@pytest.mark.parametrize(
    ("run", "red"),
    [
        (falling(), False),
        (falling(1.02), False),
        (falling(last=1.04), True),
        (falling()[::-1], True),
        ([x * (1.12 if i < 10 else 1) for i, x in enumerate(falling())], False),
        ([x * (1.12 if i < 11 else 1) for i, x in enumerate(falling())], True),
        ([NAN] * 100, False),
    ],
    ids=["equal", "2% high", "last 4% off", "rises", "10 of 100 outside", "11 of 100 outside", "NaN is green"],
)
def test_bridge(run: list[float], red: bool):
    assert peers.bridge(run, falling()) == red


def test_the_settings_of_bridges_command_allow_a_last_loss_4_per_cent_off():
    assert not peers.bridge(falling(last=1.04), falling(), peers.Bridge(skip=0.2, last=0.05))


def test_torchtitan_compares_fp32():
    assert not peers.torchtitan([1.0 + 1e-9], [1.0])
    assert peers.torchtitan([1.0 + 1e-6], [1.0])
    assert peers.torchtitan([1.0], [1.0, 1.0])
    assert peers.torchtitan([NAN], [1.0])


def test_liger_allows_6_per_cent_of_a_loss_of_1():
    assert not peers.liger([1.0, 1.059], [1.0, 1.0])
    assert peers.liger([1.0, 1.061], [1.0, 1.0])
    assert peers.liger([NAN], [1.0])
    assert not peers.liger([NAN], [NAN])


def reaching(*steps: int) -> list[list[float]]:
    return [[2.0] * (n - 10) + [1.0] * (110 - n) for n in steps]


@pytest.mark.parametrize(
    ("runs", "fast", "either"),
    [
        ((20, 20, 30), True, True),
        ((30, 30, 30), False, False),
        ((60, 60, 60), False, True),
        ((200, 200, 30), True, True),
    ],
    ids=["17 steps early", "10 early", "20 late", "two never"],
)
def test_mlperf_rejects_a_mean_14_steps_before_the_references(runs: tuple[int, ...], fast: bool, either: bool):
    """References 30, 40 and 50: sd 8.16, t = 2.13 with 4 degrees of freedom, so the limit is 14.2 steps."""
    references = reaching(30, 40, 50)
    own = [r if len(r) == 100 else [2.0] * 100 for r in reaching(*runs)]
    assert (peers.mlperf(own, references), peers.mlperf(own, references, mirrored=True)) == (fast, either)


@pytest.mark.parametrize(("norm", "red"), [(1.082, False), (1.084, True), (0.9, True), (NAN, True)])
def test_the_rule_on_gradients_allows_8_per_cent(trajectory, norm: float, red: bool):
    reference = trajectory("bf16", 0, 0.0, first_gradients={"a": 1.0, "b": 2.0})
    run = reference.model_copy(update={"first_gradients": {"a": norm, "b": 2.0}})
    assert peers.megatron_gradients(run, reference) == red


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 44, 0, 1 - 0.025 ** (1 / 44)), (11, 11, 0.025 ** (1 / 11), 1), (5, 10, 0.187, 0.813)],
)
def test_the_interval_of_a_count(hits: int, n: int, low: float, high: float):
    assert stats.share_interval(hits, n) == pytest.approx((low, high), abs=5e-4)


GAPS = {
    "none": 0.0,
    "small": 0.0007,
    "at the margin": 0.001,
    "large": 0.003,
    "implausible": -0.02,
    "framework": 0.00015,
    "lower": -0.0015,
}


@cache
def gates() -> simulated.Noise:
    """The noise of micro on two machines, with recipes of all three [[loss]] rows."""
    [found] = trials.models([records(MICRO), records(XEON)], *references())
    known = simulated.noise(found)
    assert known is not None
    return known


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("shape", ["constant", "spike", "growing"])
@pytest.mark.parametrize("recipe", ["bf16", "te-current", "te-delayed", "te-nvfp4"])
def test_simulated_verdicts_are_those_of_the_judge(recipe: str, shape: str, gap: float):
    """The arrays of ``many`` and ``loss.judge`` give the same status and stop at the same look."""
    known = gates()
    cell = next(c for c in (known.cells[0].control, *known.cells) if c.recipe == recipe)
    drawn = simulated.draw(known, 2, 8, simulated.MIXED, np.random.default_rng(7))
    steps = np.arange(300)
    form = {"constant": np.ones(300), "spike": 2.0 * (steps // 10 == 12), "growing": np.linspace(-8, 8, 300)}[shape]
    moved = Curves(gap * form, 3 * gap * form * (steps > 0), np.asarray(gap * form[-1]))
    controls = drawn.controls.moved(moved) if cell.is_control else drawn.controls
    runs = controls if cell.is_control else drawn.runs[cell].moved(moved)
    found = many.judge(runs, controls, drawn.reference, simulated.stick(known, cell, references()[0]))
    for row in range(2):
        assert (found.status[row], found.seeds[row]) == judged_singly(cell, runs, controls, row)


def judged_singly(cell: Cell, runs: Curves, controls: Curves, row: int) -> tuple[str, int]:
    """The status of one simulated session by ``loss.judge``, and the number of its seeds."""
    stored, rules = references()
    golden = gates().model.golden
    recorded = {c: found[0] for session in gates().model.sessions for c, found in session.runs.items()}

    def made(curves: Curves, kind: Cell, seed: int) -> Trajectory:
        values = {
            "loss": curves.loss[row, seed].tolist(),
            "grad_norm": curves.norm[row, seed].tolist(),
            "first_gradients": {},
        }
        own = golden.seeds[seed]
        start = {
            "seed": own.seed,
            "initial_weights": own.initial_weights,
            "validation": [(299, float(curves.validation[row, seed]))],
        }
        return recorded[kind].model_copy(update={**values, **start})

    for count in (2, 3, 5, 8):
        own = [made(controls, cell.control, seed) for seed in range(count)]
        candidates = own if cell.is_control else [made(runs, cell, seed) for seed in range(count)]
        found = loss.judge(candidates, own, golden, rules, stored.numbers)
        if found.status != "inconclusive":
            break
    return found.status, count


def test_sound_sessions_are_green_and_a_larger_dose_is_found_more_often():
    known = simulated.noise(model(MICRO))
    assert known is not None
    found = severity.detector(known, references()[0], 40, in_bf16=False)
    assert found is not None
    constant = severity.faults(known.model)[0]
    shares = [found.share(constant.scaled(by)) for by in (0.0, 0.0005, 0.002)]
    assert shares[0] < 0.05 and shares == sorted(shares) and shares[-1] == 1
    assert found.share(constant.since(0)) == 1


def test_all_recipes_of_a_sample_draw_the_same_seeds():
    known = simulated.noise(model(MICRO))
    assert known is not None
    [sample] = known.samples
    twins = simulated.Sample(sample.cells[:2], Curves(*(np.stack([x[0], x[0]]) for x in sample.gaps)))
    drawn = simulated.draw(
        simulated.Noise(known.model, known.device, known.bf16, [twins]), 3, 3, simulated.MIXED, np.random.default_rng(0)
    )
    first, second = drawn.runs.values()
    np.testing.assert_array_equal(first.loss, second.loss)


def test_exact_rules_are_red_on_sound_runs_and_wide_rules_miss_faults():
    assert head_to_head.head_to_head(results())[-1][0] == head_to_head.OURS
    faults = head_to_head.count(results(), "torchtitan", trials.FRAMEWORK)
    assert (faults.red, faults.n) == (11, 11)
    assert head_to_head.count(results(), "torchtitan", trials.SOUND, trials.REPLICAS) == head_to_head.Count(5, 5)
    wide, own = (
        head_to_head.count(results(), name, trials.FRAMEWORK).red for name in ("Megatron-LM, 5%", head_to_head.OURS)
    )
    assert wide < own


def test_a_count_says_how_sure_it_is():
    assert head_to_head.Count(0, 0).text() == "-"
    assert head_to_head.Count(0, 44).text() == "0 of 44 [0%, 8%]"


def test_the_page_is_the_same_twice_and_its_faults_of_tiny_are_those_of_the_committed_one():
    """This set alone holds tiny's faults. The committed page also has sound runs of other sets."""
    made = [evidence.page([TINY], [records(TINY)], *references(), gates=20, draws=10) for _ in range(2)]
    assert made[0] == made[1]
    found, committed = (_faults_of_tiny(text) for text in (made[0], (ROOT / "docs/evidence.md").read_text()))
    assert found == committed and len(found) == 2 + len(peers.RULES) + 1


def _faults_of_tiny(page: str) -> list[list[str]]:
    """The rows of tiny's table: rule, faults in BF16, faults in a recipe."""
    lines = page.split("### tiny on topics\n")[1].split("\n## ")[0].split("\n### ")[0].splitlines()
    return [line.split("|")[1:4] for line in lines if line.startswith("|")]


def test_the_short_table_has_a_line_for_each_rule():
    lines = head_to_head.short_table(results())
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        *(r.name for r in peers.RULES),
        head_to_head.OURS,
    ]
