"""``fp8parity ablate``: which place costs the error; the shares add up; a planted fault is found at its place."""

import json
import re
from dataclasses import replace
from statistics import fmean

import pytest
from fp8parity.checks.gradients import BATCHES
from fp8parity.checks.protocol import RunSpec
from fp8parity.cli import main
from fp8parity.numerics.spec import Operand
from fp8parity.recipes import RECIPES
from fp8parity.recipes.recipe import Rule
from fp8parity.records.schema import Measurement
from fp8parity.report.render import html
from fp8parity_lab.ablation import measured
from fp8parity_lab.ablation import page as report
from sessions import cell
from test_report_page import Page

NOISY = Operand("e5m2", scale="te-pow2")
SHARES = [("initial", "block 0", v) for v in (0.2, 0.2, 0.35)] + [
    ("initial", "block 1", 0.75),
    ("trained", "block 0", 0.3),
]
"""Three batches of block 0 in its initial state, one of the others."""


@pytest.fixture
def spec(session, eager, monkeypatch) -> RunSpec:
    """``nano`` in its initial state, which needs no training."""
    monkeypatch.setattr(measured, "STATES", ("initial",))
    return session.spec(cell("te-current", "emulated", "nano"))


def shares(spec: RunSpec, kind: str) -> dict[str, float]:
    found = report.rows(list(measured.measure(spec, kind)))
    assert all(len(set(numbers)) == BATCHES for of in found.values() for numbers in of.values()), (
        "each batch is another one"
    )
    return {place: fmean(numbers) for place, numbers in found["initial share"].items()}


@pytest.mark.slow
def test_the_shares_of_the_three_gemms_add_up(spec):
    found = shares(spec, "gemm")
    assert list(found) == ["fprop", "dgrad", "wgrad"]
    assert 0.9 < sum(found.values()) < 1.1
    assert all(0.1 < share < 0.7 for share in found.values())


@pytest.mark.slow
def test_a_gemm_with_fewer_bits_costs_most(spec):
    worse = replace(spec.recipe, linear=replace(spec.recipe.linear, wgrad_x=NOISY))
    before, after = shares(spec, "gemm"), shares(replace(spec, recipe=worse), "gemm")
    assert max(after, key=lambda gemm: after[gemm]) == "wgrad"
    assert after["wgrad"] > before["wgrad"] + 0.1


def test_places_of_a_model(spec):
    tiny = replace(spec, model=replace(spec.model, layers=3))
    assert [a.place for a in measured.ablated(tiny, "block")] == ["block 0", "block 1", "block 2"]
    assert [a.place for a in measured.ablated(tiny, "name")] == [
        f"{n}_proj" for n in ("q", "k", "v", "o", "gate", "up", "down")
    ]
    assert [a.recipe.rules[0].blocks for a in measured.ablated(tiny, "gemm")] == [(0, 1, 2)] * 3


def test_a_recipe_with_rules_is_refused(spec):
    placed = replace(spec, recipe=RECIPES["te-current-ends-bf16"])
    with pytest.raises(ValueError, match="te-current-ends-bf16 has rules of its own; ablate te-current instead"):
        measured.ablated(placed, "block")
    with pytest.raises(ValueError, match="mine has rules of its own; ablate a recipe without rules instead"):
        measured.ablated(replace(spec, recipe=replace(spec.recipe, name="mine", rules=(Rule(blocks=(0,)),))), "block")


def test_the_page_has_a_plot_and_a_table_of_shares():
    values = [Measurement(metric=f"{state} share", where=w, value=v) for state, w, v in SHARES]
    text = html(report.document("te-current", "tiny", {"block": values}))
    assert Page(text).texts["td"] == ["+75% [+75%, +75%]", "-", "+25% [+20%, +35%]", "+30% [+30%, +30%]"]
    [drawn] = re.findall(r'<script type="application/json" id="data-block">(.*?)</script>', text)
    bars = json.loads(drawn)["data"]
    shown = [(t["name"], t["x"], t["y"]) for t in bars]
    assert shown == [("initial share", ["block 0", "block 1"], [0.25, 0.75]), ("trained share", ["block 0"], [0.3])]
    ends = (bars[0]["error_y"]["array"], bars[0]["error_y"]["arrayminus"])
    assert ends == (pytest.approx([0.1, 0]), pytest.approx([0.05, 0]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("te-curent",), "unknown recipe 'te-curent': did you mean te-current"),
        (("te-current", "--by", "blocks"), "unknown kind of place 'blocks': did you mean block"),
        (("te-current", "--model", "tny"), "unknown model 'tny': did you mean tiny"),
        (("te-current", "--plot", "x.pdf"), "--plot x.pdf: the plot is a page; name a .html file"),
    ],
)
def test_wrong_arguments(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["ablate", *arguments]) == 2
    assert message in capsys.readouterr().err
