"""The doors to single GEMMs: casts, orientation and formats of torchao on a CPU, and what this project adds around any door."""

from __future__ import annotations

import pytest
from fp8parity import recipes
from fp8parity.numerics.operands import FAMILIES, draw
from fp8parity.recipes.adapter import GemmTerms
from fp8parity.timing.gemms import BF16Gemms

EXACT = {"e4m3": 0.0265, "e5m2": 0.053, "bf16": 0.0016}
"""The relative error that an operand of this format adds to a product of Gaussian operands. Errors of both add in squares."""


def relative(out, wanted) -> float:
    return float((out.double() - wanted).norm() / wanted.norm())


@pytest.fixture(params=["ao-tensorwise", "ao-rowwise", "ao-rowwise-gw-hp"])
def door(request):
    pytest.importorskip("torchao")
    from fp8parity.recipes.adapters import torchao, torchao_gemms

    recipe, operands = recipes.get(request.param), draw(FAMILIES[0])
    made = torchao_gemms.TorchaoGemms(recipe, torchao.config_for(recipe, emulate=True), operands)
    made.compiled.steps = {
        p: made.compiled._both(p) for p in torchao_gemms.READS
    }  # eager: the test is about numbers, not about time
    for cast in made.casts:
        made.cast(cast)
    return recipe, operands.product(), made


@pytest.mark.parametrize("product", ["fprop", "dgrad", "wgrad"])
def test_torchao_products_have_the_errors_of_formats(door, product):
    recipe, wanted, made = door
    formats = made.formats(product)
    spec = dict(recipe.linear)
    names = {"fprop": ("fprop_x", "fprop_w"), "dgrad": ("dgrad_dy", "dgrad_w"), "wgrad": ("wgrad_dy", "wgrad_x")}[
        product
    ]
    assert formats == tuple(spec[n].format if spec[n].quantized else "bf16" for n in names)
    expected = sum(EXACT[f] ** 2 for f in formats) ** 0.5
    assert relative(made.step(product), wanted[product]) == pytest.approx(expected, rel=0.35)


def test_torchao_casts_what_its_recipe_says(door):
    recipe, _, made = door
    wanted = {(n.split("_")[1], n.split("_")[0]) for n, op in recipe.linear if op.quantized}
    assert {(c.operand, c.before) for c in made.casts} == wanted
    assert {c.directions for c in made.casts} == {1}


def test_torchao_has_no_main_gradients():
    pytest.importorskip("torchao")
    from fp8parity.recipes.registry import adapter

    with pytest.raises(ValueError, match="ao-rowwise: torchao has one way to run its GEMMs; leave --main-grads"):
        adapter("torchao").gemms(recipes.get("ao-rowwise"), draw(FAMILIES[0]), GemmTerms(main_grads=True))  # type: ignore[attr-defined]


@pytest.mark.parametrize("published", [False, True])
def test_bf16_has_the_layout_of_a_linear(published):
    operands = draw(FAMILIES[0])
    made = BF16Gemms(operands, GemmTerms(published=published))
    for product, wanted in operands.product().items():
        assert relative(made.gemm(product), wanted) < 0.003
    assert made.weight.is_contiguous() == published  # the weight of a Linear is read transposed
