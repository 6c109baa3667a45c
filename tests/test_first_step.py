"""A run's gradients: of the first step next to BF16's, and probed SQNRs early and late in the run."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from pathlib import Path

import paired
import pytest
from fp8parity.judging import loss
from fp8parity.judging.decide import Changed
from fp8parity.judging.gradients import TOTAL, numbers_of
from fp8parity.judging.policy import LossRow, Policy
from fp8parity.judging.policy.rows import Band, Rule
from fp8parity.judging.policy.thresholds import Threshold
from fp8parity.judging.references.loss import from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers, Number, NumberKey
from fp8parity.judging.table import Column
from fp8parity.records.cell import Execution
from fp8parity.records.schema import Probed
from fp8parity.records.sets import machines, merge
from narrowed import some
from paired import SEEDS
from sessions import GOLDEN

HEADLINE = "the gradient of the first step is not the one that this recipe gives"
ROW = LossRow(margin=0.005, seeds=(3, 5), why="a made-up row")


def table(corpus: str = "topics", metric: str = "first gradient norm", **expect: float) -> Policy:
    """Rules that expect a ratio of the nano model, by recipe, +- 0.01."""
    rules = [
        Rule(
            check=("loss parity",), metric=(metric,), model=("nano",), corpus=(corpus,), recipe=(name.replace("_", "-"),), low=value - 0.01,
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
        gap = 2e-5 if recipe == "bf16" else 1e-4
        runs = [
            trajectory(recipe, s, gap * (s + 1), grad_norm=[2.0 * r] + [1.00001] * 11, **changes)
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
    assert (
        f"first gradient norm, step 0, seed 1: {ratio:g} is {'below' if ratio < 1 else 'above'} [0.99, 1.01] (a made-up bound)"
        in text
    )
    assert "the recipe changed, not the framework" in text


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_an_odd_parameter_is_red_though_the_norm_is_fine(verdict, ratio):
    found = verdict(
        (1.0, 1.0, 1.0), table(metric="first gradient", te_current=1.0), first_gradients={"a": 1.2, "b": 1.6 * ratio}
    )
    assert found.status == "fail"
    side = "below" if ratio < 1 else "above"
    assert f"first gradient of b, step 0, seed 0: {ratio:g} is {side} [0.99, 1.01] (a made-up bound)" in found.message()
    assert [(r.metric, r.where, r.value) for r in found.failing] == [("first gradient", "b", 1.6 * ratio / 1.6)]
    assert [r.seed for r in found.rows if r.outside] == list(SEEDS)


@pytest.mark.parametrize(("ratio", "status"), [(0.5, "pass"), (1.5, "pass"), (0.499, "fail"), (1.501, "fail")])
def test_a_ratio_at_the_edge_of_its_rule_is_inside(verdict, ratio, status):
    [rule] = table(te_current=1.0).rule
    wide = table().model_copy(update={"rule": (rule.model_copy(update={"low": 0.5, "high": 1.5}),)})
    assert verdict((1.0, ratio, 1.0), wide).status == status


def test_bf16_is_held_to_its_golden(verdict):
    found = verdict((1.0, 1.02, 1.0), table(bf16=1.0), recipe="bf16")
    assert (found.status, found.loss.blame) == ("drift", Changed.FRAMEWORK)
    assert found.headline.startswith("BF16's own gradient of the first step is not its golden's: BF16 changed and ")
    assert "first gradient norm, step 0, seed 1: 1.02 is above [0.99, 1.01]" in found.message()


@pytest.mark.parametrize("ratio", [1.0, 0.96], ids=["the recipe stayed", "the recipe went along"])
def test_a_control_that_starts_wrong_is_the_framework(verdict, ratio):
    found = verdict((ratio,) * 3, table(bf16=1.0, te_current=1.0), control=0.96)
    assert (found.status, found.loss.blame) == ("drift", Changed.FRAMEWORK)
    assert "first gradient norm, step 0, seed 0: 0.96 is below" in found.loss.reasons[0]


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
    [row] = [r for r in found.rows if r.metric == TOTAL and r.seed == 0 and r.column is Column.RECIPE]
    assert (row.low, row.high, row.outside) == (pytest.approx(0.95), pytest.approx(0.97), status == "fail")
    assert row.reason == "measured 0.96 +- 0.01, source set1: a made-up band"
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


MEASURED = tuple(
    t.model_copy(update={"model": ()}) for t in Policy(path=Path("policy.toml")).threshold if "micro" in t.model
)
"""The thresholds of the models of sound runs, for the made-up one."""


def probes(early: float, late: float, worst: float | None = None) -> list[Probed]:
    return [
        Probed(step=10, sqnr=early, worst=early - 3, where="a.weight"),
        Probed(step=159, sqnr=late, worst=late - 3 if worst is None else worst, where="b.weight"),
    ]


def between(sqnr: float) -> list[Probed]:
    """Probes of a run that was sound at its early and its last step."""
    early, late = probes(25.0, 24.0)
    return [early, Probed(step=80, sqnr=sqnr, worst=20.0, where="a.weight"), late]


def probed_verdict(run, golden, found: list[Probed], thresholds: Sequence[Threshold] = MEASURED, **changes: object):
    """The verdict on three seeds; the second has these probes."""
    given = [{"probes": probes(25.0, 21.0)} if seed != 1 else {"probes": found} | changes for seed in SEEDS]
    runs = [run("te-current", seed, noise=3, **fields) for seed, fields in zip(SEEDS, given, strict=True)]
    return paired.judged(golden, runs, [run(seed=seed) for seed in SEEDS], thresholds=thresholds)


@pytest.mark.parametrize(
    ("found", "words", "value"),
    [
        (probes(25.0, 28.0), None, None),
        (probes(25.0, 28.1), "gradient sqnr rise, step 159, seed 1: 3.1 dB is above [-15, 3]", 3.1),
        (probes(25.0, inf), "quantization stopped during the run", inf),
        (probes(inf, 25.0), "gradient sqnr rise, step 159, seed 1: -inf dB is below [-15, 3]", -inf),
        (between(25.0), None, None),
        (between(inf), "gradient sqnr rise, step 80, seed 1: inf dB is above [-15, 12]", inf),
        (probes(25.0, 10.0), None, None),
        (probes(25.0, 9.9), "seed 1: -15.1 dB is below", -15.1),
        (probes(25.0, nan, 20.0), "nan dB is not in", nan),
        (probes(25.0, 21.0, 1.0), None, None),
        (probes(25.0, 21.0, 0.9), "weight gradient sqnr of b.weight, step 159, seed 1: 0.9 dB is below [1, inf]", 0.9),
        (probes(inf, inf), "gradient sqnr, step 10, seed 1: inf dB is above [-inf, 45]", inf),
        (probes(45.1, 46.0), "nothing was quantized", 45.1),
        (probes(45.0, 46.0), None, None),
    ],
)  # fmt: skip
def test_a_change_within_the_limits_is_green_and_one_beyond_is_red(run, golden, found, words, value):
    made = probed_verdict(run, golden, found)
    assert made.status == ("fail" if words else "pass"), made.message()
    first = next((r.value for r in made.rows if r.outside), None)
    assert (words is None and first is None) or first == pytest.approx(value, nan_ok=True)
    if words:
        assert words in made.headline and "later gradients" in dict(made.lines)
        assert some(made.loss).reasons == [made.headline]
        assert some(made.loss).blame == "the recipe changed, not the framework"


def test_a_run_that_could_not_be_probed_says_why(run, golden):
    made = probed_verdict(run, golden, [], unprobed="no room")
    assert (
        made.status == "pass"
        and dict(made.lines)["not probed"] == "no room"
        and made.unmeasured == probed_verdict(run, golden, probes(25.0, 21.0)).unmeasured
    )


def test_a_recipe_that_changed_beside_a_framework_that_moved_is_a_fault_of_both(run, golden):
    runs = [run("te-current", s, noise=3, change=0.01, probes=probes(25.0, inf)) for s in SEEDS]
    made = paired.judged(golden, runs, [run(seed=s, change=0.01) for s in SEEDS])
    assert (made.status, some(made.loss).blame) == ("fail", Changed.BOTH)
    assert "gradient sqnr rise" in {r.metric for r in made.failing}


def test_a_run_on_record_since_before_the_probe_is_the_same_run(run):
    """In any order. The record with more probes is kept: in another run of the same there may have been no memory for them."""
    old, one, new = (run("te-current", probes=found) for found in ([], probes(25.0, 21.0)[:1], probes(25.0, 21.0)))
    for some_of in ([old, new], [new, one, old], [one, new], [old, one, new]):
        assert merge([(Path(f"{i}"), r) for i, r in enumerate(some_of)]) == [new]
    assert merge([(Path("a"), new), (Path("b"), run("te-current", probes=probes(25.0, 21.001)))]) == [new]


@pytest.mark.parametrize(
    ("found", "status"), [(probes(25.0, 2.0), "pass"), (probes(25.0, 21.0, -3.0), "pass"), (probes(25.0, 33.1), "fail")]
)
def test_only_a_rise_is_judged_in_a_model_that_was_not_measured(run, golden, found, status):
    """The gradient of a large batch falls further, and that of one expert may have nothing in common with BF16's."""
    assert probed_verdict(run, golden, found, ()).status == status
