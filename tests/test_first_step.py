"""The first step's gradient: repeats from seed to seed, and a fault of one step's arithmetic shows in it."""

from __future__ import annotations

import pytest
from fp8parity.judging import loss
from fp8parity.judging.gradients import TOTAL, numbers_of
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.policy.rows import Band, Rule
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.verdict import Failing
from fp8parity.records.cell import Execution
from fp8parity.records.sets import machines
from sessions import GOLDEN, stored

HEADLINE = "the gradient of the first step is not the one that this recipe gives"
ROW = LossRow(margin=0.005, seeds=(3, 5), why="a made-up row")
SEEDS = (0, 1, 2)
RULES = stored()[1]
"""The project's own policy."""


def table(corpus: str = "topics", metric: str = "first gradient norm", **expect: float) -> Policy:
    """Rules that expect a ratio of the nano model, by recipe, +- 0.01."""
    rules = [
        Rule(
            check=("loss parity",), metric=(metric,), where=("nano",), corpus=(corpus,), recipe=(name.replace("_", "-"),), low=value - 0.01,
            high=value + 0.01, why="a made-up bound",
        )
        for name, value in expect.items()
    ]  # fmt: skip
    return Policy(path=GOLDEN / "policy.toml", loss=(ROW,), rule=tuple(rules))


@pytest.fixture
def verdict(trajectory):
    """Judge te-current beside BF16, or BF16 alone, with first gradient norms of 2 times the given ratios. Of the parameters, those in
    ``first_gradients`` differ from BF16's."""

    def make(ratios, rules, recipe="te-current", control=1.0, numbers=MeasuredNumbers(), **changes):  # noqa: B008 - frozen
        golden = from_runs([trajectory(seed=s, grad_norm=[2.0] + [1.0] * 11) for s in range(8)], [])
        gradients = {"a": 1.2, "b": 1.6, "small": 0.25, "frozen": 0.0}
        controls = [
            trajectory(seed=s, grad_norm=[2.0 * control] + [1.0] * 11, first_gradients=gradients) for s in SEEDS
        ]
        if "first_gradients" in changes:
            changes["first_gradients"] = gradients | changes["first_gradients"]
        runs = [
            trajectory(recipe, s, 1e-4 * (s + 1), grad_norm=[2.0 * r] + [1.0] * 11, **changes)
            for s, r in zip(SEEDS, ratios, strict=True)
        ]
        return loss.judge(runs, runs if recipe == "bf16" else controls, golden, rules, numbers)

    return make


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_an_odd_first_step_is_red_though_the_loss_is_fine(verdict, ratio):
    found = verdict((1.0, ratio, 1.0), table(te_current=1.0))
    assert found.status == "fail"
    text = found.message()
    assert HEADLINE in text
    assert f"gradient norm {ratio:.4f}x BF16's, expected 0.9900 to 1.0100, seed 1 (a made-up bound)" in text
    assert "the recipe changed, not the framework" in text


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_an_odd_parameter_is_red_though_the_norm_is_fine(verdict, ratio):
    found = verdict(
        (1.0, 1.0, 1.0), table(metric="first gradient", te_current=1.0), first_gradients={"a": 1.2, "b": 1.6 * ratio}
    )
    assert found.status == "fail"
    assert (
        f"gradient norm of b {ratio:.4f}x BF16's, expected 0.9900 to 1.0100, seed 0 (a made-up bound)"
        in found.message()
    )
    assert found.loss.failing == [Failing(metric="first step", where="b", value=1.6 * ratio / 1.6)] * len(SEEDS)


@pytest.mark.parametrize(("ratio", "status"), [(0.5, "pass"), (1.5, "pass"), (0.499, "fail"), (1.501, "fail")])
def test_a_ratio_at_the_edge_of_its_rule_is_inside(verdict, ratio, status):
    [rule] = table(te_current=1.0).rule
    wide = table().model_copy(update={"rule": (rule.model_copy(update={"low": 0.5, "high": 1.5}),)})
    assert verdict((1.0, ratio, 1.0), wide).status == status


def test_bf16_is_held_to_its_golden(verdict):
    found = verdict((1.0, 1.02, 1.0), table(bf16=1.0), recipe="bf16")
    assert (found.status, found.loss.moved) == ("drift", "the framework changed, not the recipe")
    assert (
        found.headline
        == "BF16's own gradient of the first step is not its golden's: the framework changed, not the recipe"
    )
    assert "gradient norm 1.0200x its golden's, expected 0.9900 to 1.0100, seed 1" in found.message()


@pytest.mark.parametrize("ratio", [1.0, 0.96], ids=["the recipe stayed", "the recipe went along"])
def test_a_control_that_starts_wrong_is_the_framework(verdict, ratio):
    found = verdict((ratio,) * 3, table(bf16=1.0, te_current=1.0), control=0.96)
    assert (found.status, found.loss.moved) == ("drift", "the framework changed, not the recipe")
    assert "gradient norm 0.9600x its golden's" in found.loss.odd_start


NORM = Band(check=("loss parity",), metric=("first gradient norm",), band=0.01, why="a made-up band")
STORED = MeasuredNumbers(
    {
        "shared": {
            NumberKey("loss parity", "first gradient norm", "nano", "nano", recipe, execution): Number(value, "set1")
            for recipe, execution, value in (("te-current", Execution.NATIVE, 0.96), ("bf16", Execution.NATIVE, 1.0))
        }
    }
)


@pytest.mark.parametrize(("ratio", "status"), [(0.955, "pass"), (0.945, "fail"), (1.0, "fail")])
def test_a_measured_ratio_is_expected_within_its_band(verdict, ratio, status):
    """The number is of the native execution; it stands in for the emulated one."""
    found = verdict((ratio,) * 3, table().model_copy(update={"band": (NORM,)}), numbers=STORED)
    assert found.status == status
    assert "expected 0.9500 to 0.9700, seed 0 (measured 0.96 +- 0.01, source set1: a made-up band)" in found.message()
    assert found.unmeasured == []


@pytest.mark.parametrize(
    ("norms", "mean"),
    [([[2.4, 9.0]], 1.2), ([[2.4, 9.0], [2.0, 9.0]], 1.1), ([[2.4, 9.0], []], 1.2)],
    ids=["one seed", "two seeds", "a seed that stopped at once"],
)
def test_the_number_to_store_is_the_mean_ratio_of_the_seeds(trajectory, norms, mean):
    runs = [trajectory("te-current", s, grad_norm=norm) for s, norm in enumerate(norms)]
    [machine] = machines([*runs, *(trajectory(seed=s, grad_norm=[2.0, 1.0]) for s in SEEDS)])
    [found] = numbers_of(machine)
    [number] = found.values
    assert (number.metric, number.where) == (TOTAL, "nano")
    assert number.value == pytest.approx(mean)
    assert (found.cell, found.check, found.provenance, found.session) == (
        runs[0].cell,
        loss.LOSS,
        runs[0].provenance,
        runs[0].session,
    )
