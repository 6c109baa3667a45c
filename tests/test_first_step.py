"""The first step's gradient: repeats from seed to seed, and a fault of one step's arithmetic shows in it."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from fp8parity import corpus, judge_set, recipes, run, tolerances
from fp8parity.emulation import EmulatedLinear
from fp8parity.golden import from_runs
from fp8parity.judge_first import first_step
from fp8parity.judge_loss import loss_parity
from fp8parity.record_set import load, machines
from fp8parity.session import presets
from fp8parity.tolerances import Bound, LossRow, Tolerances

from conftest import ROOT

HEADLINE = "the gradient of the first step is not the one that this recipe gives"
ROW = LossRow(margin=0.005, seeds=(3, 5), why="a made-up row")
SEEDS = (0, 1, 2)


def table(corpus_name: str = "*", metric: str = "first gradient norm", **expect: float) -> Tolerances:
    """Expects a ratio of the nano model, by recipe, +- 0.01."""
    bound = Bound(
        check="loss parity", metric=metric, corpus=corpus_name, band=0.01, why="a made-up bound",
        expect={name.replace("_", "-"): {"nano": value} for name, value in expect.items()},
    )  # fmt: skip
    return Tolerances(path=ROOT / "t.toml", loss=[ROW], bound=[bound], golden=[])


@pytest.fixture
def verdict(trajectory):
    """Judge te-current beside BF16, or BF16 alone, with first gradient norms of 2 times the given ratios."""

    def make(ratios, bounds, recipe="te-current", last_look=True, control=1.0, **changes):
        golden = from_runs([trajectory(seed=s, grad_norm=[2.0] + [1.0] * 11) for s in range(8)], [])
        gradients = {"a": 1.2, "b": 1.6, "frozen": 0.0}
        controls = [trajectory(seed=s, grad_norm=[2.0 * control] + [1.0] * 11, first_gradients=gradients) for s in SEEDS]
        runs = [
            trajectory(recipe, s, 1e-4 * (s + 1), grad_norm=[2.0 * r] + [1.0] * 11, **changes) for s, r in zip(SEEDS, ratios, strict=True)
        ]
        return loss_parity(runs, runs if recipe == "bf16" else controls, golden, ROW, bounds, last_look=last_look)

    return make


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_an_odd_first_step_is_red_though_the_loss_is_fine(verdict, ratio):
    found = verdict((1.0, ratio, 1.0), table(te_current=1.0))
    assert found.status == "fail"
    text = found.message()
    assert HEADLINE in text
    assert f"gradient norm {ratio:.4f}x BF16's, expected 0.9900 to 1.0100, seed 1 (a made-up bound)" in text
    assert "the recipe moved, not the framework" in text


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_an_odd_parameter_is_red_though_the_norm_is_fine(verdict, ratio):
    found = verdict((1.0, 1.0, 1.0), table(metric="first gradient", te_current=1.0), first_gradients={"a": 1.2, "b": 1.6 * ratio})
    assert found.status == "fail"
    assert f"gradient norm of b {ratio:.4f}x BF16's, expected 0.9900 to 1.0100, seed 0 (a made-up bound)" in found.message()


def test_an_odd_first_step_needs_no_more_seeds(verdict):
    assert verdict((1.0, 0.96, 1.0), table(te_current=1.0), last_look=False).status == "fail"


def test_an_expected_first_step_is_green_and_shown(verdict):
    found = verdict((0.965, 0.96, 0.955), table(te_current=0.96))
    assert found.status == "pass"
    assert "gradient norm" in dict(found.lines)["first step"]


def test_bf16_is_held_to_its_golden(verdict):
    found = verdict((1.0, 1.02, 1.0), table(bf16=1.0), recipe="bf16")
    assert (found.status, found.moved) == ("drift", "the framework moved")
    assert "BF16's own gradient of the first step is not its golden's" in found.message()
    assert "gradient norm 1.0200x its golden's, expected 0.9900 to 1.0100, seed 1" in found.message()
    found = verdict((1.0, 1.005, 1.0), table(bf16=1.0), recipe="bf16")
    assert (found.status, found.moved) == ("pass", "the framework has not moved")


@pytest.mark.parametrize("ratio", [1.0, 0.96], ids=["the recipe stayed", "the recipe went along"])
def test_a_control_that_starts_wrong_is_the_framework(verdict, ratio):
    found = verdict((ratio,) * 3, table(bf16=1.0, te_current=1.0), control=0.96)
    assert (found.status, found.moved) == ("drift", "the framework moved, not the recipe")
    assert "gradient norm 0.9600x its golden's" in found.odd_start


def test_nothing_on_both_sides_is_no_difference(verdict):
    bounds = table(metric="first gradient", te_current=1.0)
    assert verdict((1.0, 1.0, 1.0), bounds, first_gradients={"a": 1.2, "frozen": 0.0}).status == "pass"
    assert verdict((1.0, 1.0, 1.0), bounds, first_gradients={"a": 1.2, "frozen": 1e-9}).status == "fail"


@pytest.mark.parametrize("bounds", [table(te_block=1.0), table("tiny_*", te_current=1.0)], ids=["another recipe", "another corpus"])
def test_what_no_row_speaks_of_is_not_judged(verdict, bounds):
    found = verdict((0.5, 0.5, 0.5), bounds)
    assert found.status == "pass"
    assert "first step" not in dict(found.lines)


@cache
def one_step(recipe: str, seed: int = 0, steps: int = 1):
    preset = presets()["tiny"]
    schedule = replace(preset.schedule, steps=steps, validation_rows=4)
    execution = "native" if recipe == "bf16" else "emulated"
    return run.train(preset.model, recipes.get(recipe), execution, schedule, corpus.load("synthetic"), seed, device=torch.device("cpu"))


def judged(made):
    return first_step([made], [one_step("bf16")], tolerances.load(ROOT / "golden" / "tolerances.toml"))


def test_the_first_gradients_are_recorded_by_parameter(eager):
    made = one_step("te-current", steps=2)
    assert made.grad_norm[0] != pytest.approx(made.grad_norm[1], rel=1e-3)
    total = sum(v**2 for v in made.first_gradients.values()) ** 0.5
    assert total == pytest.approx(made.grad_norm[0], rel=1e-6)
    assert set(made.first_gradients) == set(one_step("bf16").first_gradients)
    assert not judged(made).red


OPERAND = EmulatedLinear.operand


def _scaled(names, factor, where):
    """The operands ``names`` of linears whose weight has ``where`` outputs decode to ``factor`` times what they should."""

    def operand(self, name, x):
        data, outer = OPERAND(self, name, x)
        return (data, outer * factor) if name in names and self.out_features == where else (data, outer)

    return operand


@pytest.mark.parametrize(
    ("recipe", "names", "factor", "outputs", "text"),
    [
        ("te-block", ("wgrad_dy",), 0.0, 512, "_proj.weight 0.0000x BF16's, expected 0.9300 to 1.0700"),
        ("te-current", ("dgrad_dy",), 1.1, 512, "x BF16's, expected 0.9300 to 1.0700"),
        ("te-current", ("fprop_w",), 0.5, 64, "attention.q_proj.weight 0.2479x"),
    ],
    ids=["weight gradients are lost", "a gradient's scale is off by a tenth", "a weight's scale by two"],
)
def test_a_fault_of_the_arithmetic_is_found(eager, monkeypatch, recipe, names, factor, outputs, text):
    monkeypatch.setattr(EmulatedLinear, "operand", _scaled(names, factor, outputs))
    found = judged(one_step.__wrapped__(recipe))
    assert found.red
    assert text in found.text


def test_the_miscompiled_run_of_1b_is_found():
    """Recorded on an H200: two seeds of one process trained with a wrong gradient, and the loss alone was inconclusive."""
    (machine,) = machines(load([ROOT / "golden" / "records" / "found" / "h200-gw-hp-1b.zip"]))
    rows = tolerances.load(ROOT / "golden" / "tolerances.toml")
    found = {v.cell.recipe: v for v in judge_set.verdicts(machine, rows, ROOT / "golden")}
    assert found["bf16"].status == "pass"
    assert found["ao-rowwise-gw-hp"].status == "fail"
    assert found["ao-rowwise-gw-hp"].odd_start == "gradient norm 0.9595x BF16's, expected 0.9950 to 0.9990, seed 1"
    blind = rows.model_copy(update={"bound": []})
    assert {v.cell.recipe: v.status for v in judge_set.verdicts(machine, blind, ROOT / "golden")}["ao-rowwise-gw-hp"] == "inconclusive"
