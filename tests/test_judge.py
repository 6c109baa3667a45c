"""The loss verdict: the decision table, and each status from made-up records."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from fp8parity.judging import decide, loss
from fp8parity.judging.decide import (
    BETTER,
    INSIDE,
    NONE,
    TOO_GOOD,
    UNDECIDED,
    WORSE,
    Changed,
    Place,
    Places,
)
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.table import Allowed
from fp8parity.records.schema import Module, Trajectory
from fp8parity.report.evidence import Evidence
from fp8parity.report.summary import Report


def both(framework: Place, recipe: Place = NONE, total: Place = NONE, *, windows: bool = False) -> tuple[str, Changed]:
    places = Places(framework, recipe, total, windows)
    return decide.status_of(places), decide.changed_of(places)


@pytest.mark.parametrize(
    ("places", "status", "changed"),
    [
        ((INSIDE, INSIDE, INSIDE), "pass", Changed.NOTHING),
        ((INSIDE, WORSE, WORSE), "fail", Changed.RECIPE),
        ((INSIDE, WORSE, INSIDE), "fail", Changed.RECIPE),
        ((INSIDE, BETTER, BETTER), "improved", Changed.RECIPE),
        ((INSIDE, TOO_GOOD, TOO_GOOD), "fail", Changed.RECIPE),
        ((INSIDE, UNDECIDED, UNDECIDED), "inconclusive", Changed.UNKNOWN),
        ((WORSE, INSIDE, WORSE), "drift", Changed.FRAMEWORK),
        ((WORSE, WORSE, INSIDE), "drift", Changed.FRAMEWORK),
        ((WORSE, WORSE, WORSE), "fail", Changed.BOTH),
        ((WORSE, UNDECIDED, WORSE), "fail", Changed.FRAMEWORK),
        ((WORSE, INSIDE, INSIDE), "pass", Changed.FRAMEWORK),
        ((WORSE,), "drift", Changed.FRAMEWORK),
        ((UNDECIDED,), "inconclusive", Changed.UNKNOWN),
        ((WORSE, INSIDE), "drift", Changed.FRAMEWORK),
        ((INSIDE, BETTER), "improved", Changed.RECIPE),
        ((INSIDE, UNDECIDED), "inconclusive", Changed.UNKNOWN),
    ],
)
def test_places_give_a_status_and_who_changed(places, status, changed):
    assert both(*places) == (status, changed)


def test_a_window_outside_blames_the_recipe_and_excuses_nothing():
    assert both(INSIDE, INSIDE, INSIDE, windows=True) == ("pass", Changed.RECIPE)
    assert both(WORSE, INSIDE, WORSE, windows=True) == ("fail", Changed.BOTH)


def test_a_worse_recipe_is_never_green():
    for places in (Places(*p) for p in product(Place, Place, Place, (False, True))):
        status = decide.status_of(places)
        if WORSE in (places.recipe, places.total) or places.total == TOO_GOOD:
            assert status in ("fail", "drift", "inconclusive"), places
        assert status != "drift" or places.framework == WORSE, places


@pytest.mark.parametrize(
    ("low", "high", "better", "place"),
    [
        (-1.0, 1.0, "", INSIDE),
        (1.0, 1.2, "", UNDECIDED),
        (1.1, 1.2, "", WORSE),
        (-1.2, -1.1, "", WORSE),
        (1.1, 1.2, "higher", BETTER),
        (3.1, 3.2, "higher", TOO_GOOD),
        (2.9, 3.2, "higher", BETTER),
        (-1.2, -1.1, "lower", BETTER),
        (-3.2, -3.1, "lower", TOO_GOOD),
        (3.1, 3.2, "lower", WORSE),
        (float("nan"), float("nan"), "", WORSE),
    ],
)
def test_an_interval_has_a_place(low, high, better, place):
    assert Allowed.within(1.0, better).place(low, high) == place


ROW = LossRow(margin=0.005, seeds=(3,), why="a made-up row")


@pytest.fixture
def golden(trajectory):
    return from_runs([trajectory(seed=s) for s in range(8)], [])


def judged(candidates, controls, golden, row=ROW):
    return loss.judge(candidates, controls, golden, Policy(path=Path("policy.toml"), loss=(row,)), MeasuredNumbers())


def verdict(trajectory, golden, gaps, controls=(0.0, 0.0, 0.0), row=ROW, **changes):
    candidates = [trajectory("te-current", s, g, **changes) for s, g in enumerate(gaps)]
    return judged(candidates, [trajectory(seed=s, gap=g) for s, g in enumerate(controls)], golden, row)


@pytest.mark.parametrize(
    ("gaps", "controls", "status"),
    [
        ((0.0005, -0.0004, 0.0003), (0, 0, 0), "pass"),
        ((0.0095, 0.0100, 0.0105), (0, 0, 0), "fail"),
        ((-0.0105, -0.0100, -0.0095), (0, 0, 0), "improved"),
        ((-0.004, 0.001, 0.008), (0, 0, 0), "inconclusive"),
        ((0.0105, 0.0100, 0.0102), (0.0100, 0.0101, 0.0099), "drift"),
        ((0.0105, 0.0100, 0.0102), (-0.0099, -0.0101, -0.0100), "fail"),
    ],
)
def test_status_of_gaps(trajectory, golden, gaps, controls, status):
    found = verdict(trajectory, golden, gaps, controls)
    assert found.status == status
    assert found.green == (status in ("pass", "improved"))


def test_no_golden(trajectory):
    found = verdict(trajectory, None, (1e-4, 0, 0))
    assert found.status == "no-golden"
    options = ["--parity-model-factory", "mine:made", "-m", "cpu", "--parity-golden-dir", "goldens of mine"]
    report = Report([found], None, [], "", Evidence([], options=options))
    [said] = report.failures
    where = "--model nano --corpus topics --parity-model-factory mine:made --parity-golden-dir 'goldens of mine'"
    assert f"suites/convergence {where} --golden-update" in said and report.rows[0].command in said


@pytest.mark.parametrize(("gap", "status"), [(0.0002, "pass"), (0.1, "fail")])
def test_a_run_shorter_than_a_window_is_one_window(trajectory, gap, status):
    def short(*args: object) -> Trajectory:
        made = trajectory(*args)
        return made.model_copy(
            update={
                "schedule": {**made.schedule, "steps": 6, "tail": 2},
                **{name: getattr(made, name)[:6] for name in ("loss", "grad_norm")},
                "validation": [(5, made.loss[5])],
            }
        )

    golden = from_runs([short("bf16", s) for s in range(3)], [])
    controls, candidates = [short("bf16", s) for s in range(3)], [short("te-current", s, gap) for s in range(3)]
    assert judged(candidates, controls, golden).status == status


@pytest.mark.parametrize(("count", "words"), [(1, "1 module was converted"), (2, "2 modules were converted")])
def test_a_control_that_converted_something_is_an_error(trajectory, golden, count, words):
    inventory = [Module(fqn=f"layer{i}", kind="b", config="c") for i in range(count)]
    candidates = [trajectory("te-current", s, 1e-4 * (s + 1)) for s in range(3)]
    found = judged(candidates, [trajectory(seed=s, inventory=inventory) for s in range(3)], golden)
    assert (found.status, found.headline) == ("error", f"BF16, seed 0: {words}, and the control converts none")


@pytest.mark.parametrize(("gap", "status"), [(0.0, "fail"), (1e-9, "fail"), (0.9e-6, "fail"), (1.1e-6, "pass")])
def test_one_seed_as_near_as_bf16_was_not_quantized(trajectory, golden, gap, status):
    found = verdict(trajectory, golden, (-0.0004, gap, 0.0003))
    assert found.status == status, found.message()
    assert ("seed 1" in found.headline) == (status == "fail")


@pytest.mark.parametrize(
    ("gap", "status", "headline"),
    [
        (0.01, "fail", "the gap of the validation loss to BF16 is outside the margin"),
        (0.003, "pass", "the gap to BF16 is inside the margin"),
    ],
)
def test_a_validation_loss_outside_the_margin_is_named(trajectory, golden, gap, status, headline):
    """The gap of the training loss is inside, and so is each run's last validation beside its own wider limit."""
    runs = [trajectory("te-current", s, g) for s, g in enumerate((0.0005, -0.0004, 0.0003))]
    runs = [r.model_copy(update={"validation": [(at, x * (1 + gap)) for at, x in r.validation]}) for r in runs]
    found = judged(runs, [trajectory(seed=s) for s in range(3)], golden)
    assert (found.status, found.headline.partition(":")[0]) == (status, headline)


def test_an_undecided_verdict_names_the_gap_that_is_undecided(trajectory, golden):
    found = verdict(trajectory, golden, (-0.004, 0.001, 0.008))
    assert found.status == "inconclusive"
    assert {f.metric: f.value for f in found.failing} == {
        name: pytest.approx(0.001667, abs=1e-5) for name in ("tail gap", "to control: tail gap")
    }
