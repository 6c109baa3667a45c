"""Recipes by place: which linear does what, refusals of wrong rules, and conversion of the variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from faults.places import SPEC, Change, converted, quantized
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.spec import BF16
from fp8parity.recipes import RECIPES, Recipe, apply
from fp8parity.recipes.conversion import linears, nothing_left, placed
from fp8parity.recipes.recipe import Rule, block_of
from fp8parity.records.cell import Execution
from fp8parity.workload import models
from fp8parity.workload.presets import presets
from sessions import Session, cell
from torch import nn

BASE = RECIPES["ao-tensorwise"]
PLACED = [r for r in RECIPES.values() if r.base or r.adapter == "torchao"]
LINEARS = [f"layers.{i}.attention.{n}_proj" for i in range(4) for n in "qkvo"] + ["lm_head"]


def tiny() -> models.Transformer:
    return models.build(presets()["tiny"].model, 0)


def ruled(*rules: Rule) -> Recipe:
    return replace(BASE, rules=rules)


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (Rule(blocks=(0, -1)), {1, 2}),
        (Rule(blocks=(-2,)), {0, 1, 3}),
        (Rule(blocks=(1, 2), names=("attention",)), {0, 3}),
    ],
)
def test_rule_leaves_its_blocks_in_bf16(rule, left):
    found = ruled(rule).placements(LINEARS)
    assert {block_of(fqn) for fqn in found} == left
    assert len(found) == 4 * len(left)
    assert set(found.values()) == {BASE.own}


def test_filter_that_names_no_linear_is_refused():
    """The filter of every recipe, lm_head, need not name one."""
    recipe = replace(BASE, filters=("lm_head", "q_proj", "qq_proj"))
    with pytest.raises(
        ValueError, match="^ao-tensorwise: no linear of the model has the name of the filter qq_proj; it has 4"
    ):
        recipe.placements(LINEARS)
    assert len(replace(BASE, filters=("lm_head", "q_proj")).placements(LINEARS[:-1])) == 12


def test_rule_about_one_gemm_leaves_the_others():
    found = ruled(Rule(blocks=(0,), gemms=("wgrad",))).placements(LINEARS)
    assert len(found) == 16
    first, second = found[LINEARS[0]].linear, found[LINEARS[4]].linear
    assert (first.wgrad_x, first.wgrad_dy) == (BF16, BF16)
    assert (first.fprop_x, first.dgrad_dy) == (BASE.linear.fprop_x, BASE.linear.dgrad_dy)
    assert second == BASE.linear


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            (Rule(blocks=(4,)),),
            "no linear of the model is at blocks 4; it has 4 blocks, and linears such as layers.0.attention.q_proj",
        ),
        ((Rule(names=("qkv",)),), "no linear of the model is at names qkv"),
        (
            (Rule(blocks=(0,)), Rule(names=("q_proj",))),
            "two rules for fprop of layers.0.attention.q_proj: blocks 0; and names q_proj",
        ),
        (
            (Rule(blocks=(-1,)), Rule(blocks=(3,), gemms=("wgrad",))),
            "two rules for wgrad of layers.3.attention.q_proj: blocks -1; and wgrad",
        ),
    ],
)
def test_wrong_rules_are_named(rules, message):
    with pytest.raises(ValueError, match=f"ao-tensorwise: {message}"):
        ruled(*rules).placements(LINEARS)


def test_rule_needs_a_place_and_known_gemms():
    with pytest.raises(ValueError, match="a rule needs a place"):
        Rule()
    with pytest.raises(ValueError, match="unknown GEMM 'wgard': did you mean wgrad"):
        Rule(blocks=(0,), gemms=("wgard",))


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["emulated", "core"])
@pytest.mark.parametrize("recipe", PLACED, ids=lambda r: r.name)
def test_inventory_of_a_recipe_is_its_placement(recipe, execution):
    places = placed(tiny(), recipe)
    converted = apply(tiny(), recipe, execution, tokens=512)
    assert {m.fqn for m in converted.inventory} == set(places)
    for m in converted.inventory:
        assert f"fprop_w: {places[m.fqn].linear.fprop_w}" in m.config
        assert f"wgrad_x: {places[m.fqn].linear.wgrad_x}" in m.config
    plain = {fqn for fqn, m in converted.model.named_modules() if type(m) is nn.Linear}
    assert plain == set(linears(tiny())) - set(places)


def test_adapter_that_ignores_a_rule_is_refused(monkeypatch):
    """The planted fault of a placed rule, and its reverse: an adapter that converts one layer too many, or one too few."""
    from fp8parity.recipes.adapters import emulated

    real = emulated.replace

    def also(model, recipe, make):
        return real(model, replace(recipe, rules=()), make)

    def too_few(model, recipe, make):
        return real(model, replace(recipe, rules=(Rule(blocks=(0, 1)),)), make)

    monkeypatch.setattr(emulated, "replace", also)
    with pytest.raises(ValueError, match=r"missing \[\], unexpected \['layers.0"):
        apply(tiny(), RECIPES["te-current-ends-bf16"], Execution.EMULATED, tokens=512)
    monkeypatch.setattr(emulated, "replace", too_few)
    with pytest.raises(ValueError, match=r"missing \['layers.1.*unexpected \['layers.3"):
        apply(tiny(), RECIPES["te-current-ends-bf16"], Execution.EMULATED, tokens=512)


@pytest.mark.parametrize(
    ("model", "reason"),
    [("micro", "its rules leave nothing of micro to quantize: blocks 0, -1 in BF16"), ("tiny", None)],
)
def test_recipe_that_leaves_nothing_is_skipped(model, reason):
    assert nothing_left(RECIPES["te-current-ends-bf16"], presets()[model].model) == reason


RECIPE = "te-current-ends-bf16"
SOUND = (
    *("te-current-ends-bf16-fp8-weights", "te-nvfp4-tail-bf16", "te-mxfp8-head", "ao-tensorwise-filtered"),
    *("te-current-wgrad-bf16", "te-current-backward-dequantized", "te-delayed-recent", "ao-rowwise", "ao-mxfp8"),
)
"""One recipe of each kind of rule and of each adapter. tests/test_faults.py has the plain ones of Transformer Engine."""
Judge = Callable[..., Verdict]


@pytest.fixture
def judged(session: Session, monkeypatch) -> Judge:
    """The verdict of the check on a recipe and a model of three blocks. A plant changes the converted model."""
    nano = session.preset("nano")
    session.presets = {**session.presets, "nano": replace(nano, model=replace(nano.model, layers=3))}

    def run(plant: Change = lambda model: None, recipe: str = RECIPE) -> Verdict:
        with monkeypatch.context() as patch:
            converted(plant)(patch)
            return session.numerics("places", cell(recipe, "emulated", "nano"))

    return run


def named(found: Verdict) -> set[str]:
    """What the verdict names beside the counts."""
    return {name for name, _ in found.lines if name.startswith("misplaced ") and "layers." in name}


@pytest.mark.usefixtures("eager")
@pytest.mark.slow
@pytest.mark.parametrize("recipe", SOUND)
def test_sound_recipes_pass(judged, recipe):
    found = judged(recipe=recipe)
    assert found.status == "pass", found.message()


TIED = "wgrad of lm_head is not examined: its weight is tied"


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("plant", "wrong"),
    [(lambda model: None, set()), (quantized("lm_head"), {"fprop", "dgrad"})],
    ids=["sound", "head in FP8"],
)
def test_wgrad_of_a_tied_head_is_left_out(session, judged, plant, wrong):
    """Its gradient holds that of the embedding, too. What the head itself multiplies is looked at."""
    nano = session.presets["nano"]
    session.presets["nano"] = replace(nano, model=replace(nano.model, tied=True))
    found = judged(plant)
    assert {name for name, _ in found.lines if "misplaced" in name and "lm_head" in name} == {
        f"misplaced {gemm} @ lm_head" for gemm in wrong
    }, found.message()
    assert TIED in [text for name, text in found.lines if name == "note"]


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_gemm_wrongly_quantized_is_named(judged, monkeypatch):
    """A rule about wgrad alone, and a module made without it."""
    ruled = replace(RECIPES["te-current"], name=RECIPE, rules=(Rule(blocks=(1,), gemms=("wgrad",)),))
    monkeypatch.setitem(RECIPES, RECIPE, ruled)
    assert judged().status == "pass"

    def plant(model: nn.Module) -> None:
        model.get_submodule("layers.1.attention.o_proj").spec = SPEC  # type: ignore[assignment]

    assert named(judged(plant)) == {"misplaced wgrad @ layers.1.attention.o_proj"}
