"""Loss parity: each verdict from made-up records, and the messages a person reads."""

from pathlib import Path

import pytest
from fp8parity.judging import loss
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.records.schema import Module

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
        ((0.0001, 0.0002, 0.0001), (-0.0099, -0.0101, -0.0100), "drift"),
        ((0.0105, 0.0100, 0.0102), (-0.0099, -0.0101, -0.0100), "fail"),
    ],
    ids=[
        "pass",
        "fail",
        "improved",
        "inconclusive",
        "framework moved",
        "BF16 moved away from the recipe",
        "both moved apart",
    ],
)
def test_status_of_gaps(trajectory, golden, gaps, controls, status):
    found = verdict(trajectory, golden, gaps, controls)
    assert found.status == status
    assert found.green == (status in ("pass", "improved"))


def test_a_drifting_control_is_red_itself(trajectory, golden):
    runs = [trajectory(seed=s, gap=0.01 + 1e-4 * s) for s in range(3)]
    assert judged(runs, runs, golden).status == "drift"


def test_a_control_that_stayed_is_green(trajectory, golden):
    runs = [trajectory(seed=s, gap=1e-4 * s) for s in range(3)]
    assert judged(runs, runs, golden).status == "pass"


def test_no_golden(trajectory):
    found = verdict(trajectory, None, (1e-4, 0, 0))
    assert found.status == "no-golden"
    assert "--golden-update" in found.message()


def test_a_golden_without_a_seed_is_no_golden_for_it(trajectory):
    golden = from_runs([trajectory(seed=s) for s in (0, 1, 7)], [])
    found = verdict(trajectory, golden, (0.0005, -0.0004, 0.0003))
    assert (found.status, found.headline) == ("no-golden", "the golden holds no seeds [2]")


def test_a_recipe_that_converted_nothing_is_an_error(trajectory, golden):
    found = verdict(trajectory, golden, (0.0005, -0.0004, 0.0003), inventory=[])
    assert (found.status, found.headline) == ("error", "seed 0: the recipe converted no module")


"""What a run holds since schema 2."""


@pytest.mark.parametrize(("count", "words"), [(1, "1 module was converted"), (2, "2 modules were converted")])
def test_a_control_that_converted_something_is_an_error(trajectory, golden, count, words):
    inventory = [Module(fqn=f"layer{i}", kind="b", config="c") for i in range(count)]
    candidates = [trajectory("te-current", s, 1e-4 * (s + 1)) for s in range(3)]
    found = judged(candidates, [trajectory(seed=s, inventory=inventory) for s in range(3)], golden)
    assert (found.status, found.headline) == ("error", f"BF16, seed 0: {words}, and the control converts none")


@pytest.mark.parametrize(
    ("gap", "status", "headline"),
    [
        (0.0, "fail", "the losses equal BF16's to the bit: nothing was quantized (a silent fall-back?)"),
        (1e-9, "pass", "the gap to BF16 is inside the margin"),
    ],
)
def test_one_seed_with_the_losses_of_bf16_was_not_quantized(trajectory, golden, gap, status, headline):
    found = verdict(trajectory, golden, (-0.0004, gap, 0.0003))
    assert (found.status, found.headline) == (status, headline)


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
    assert (found.status, found.headline) == (status, headline)


def test_an_undecided_verdict_names_the_gap_that_is_undecided(trajectory, golden):
    found = verdict(trajectory, golden, (-0.004, 0.001, 0.008))
    assert found.status == "inconclusive"
    assert {f.metric: f.value for f in found.failing} == {
        name: pytest.approx(0.001667, abs=1e-5) for name in ("tail gap", "to control", "validation")
    }
