"""Timing of GEMMs without a GPU: graphs are made up, the products are real. What is measured, checked and refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fp8parity import recipes
from fp8parity.numerics.operands import FAMILIES, draw
from fp8parity.recipes.adapter import Cast, GemmTerms
from fp8parity.records.gemms import Accumulation, GemmMode
from fp8parity.timing import gemm_values, gemms, graphs
from fp8parity.timing.gemms import BF16Gemms
from fp8parity.training import kernels
from fp8parity.workload import shapes
from fp8parity.workload.shapes import GemmShape

SHAPE = GemmShape("up", 64, 96, 32)


QUIET: Any = SimpleNamespace(start=lambda: None, sample=lambda: None)
"""A monitor that sees nothing."""


class Graph:
    """A graph that runs its works at once, and whose time is made up."""

    def __init__(self, works, calls):
        self.works, self.calls = works, calls
        self.outputs = {i: w() for i, w in enumerate(works)}

    def run(self):
        for i, work in enumerate(self.works):
            again, kept = work(), self.outputs[i]
            if kept is not None and kept is not again:
                kept.copy_(again)

    def seconds(self):
        return 1e-3


class Door(BF16Gemms):
    """A recipe that computes in BF16 and says that it is FP8."""

    separate = True
    casts = (Cast("x", "fprop", 2), Cast("dy", "dgrad", 2))

    def cast(self, cast):
        self.done = [*getattr(self, "done", []), cast]

    def step(self, product):
        return self.gemm(product)

    def formats(self, product):
        return ("e4m3", "e4m3")


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(gemms, "Replay", Graph)
    monkeypatch.setattr(graphs, "SETTLED_SECONDS", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *a: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *a: SimpleNamespace(L2_cache_size=2**10))
    monkeypatch.setattr(kernels, "names", lambda work: ["nvjet_sm90_qqtst"])
    monkeypatch.setattr(gemm_values, "accumulation_of", lambda *a: Accumulation.SPLIT)
    found = gemms.Session(recipes.get("te-current"), torch.device("cpu"), QUIET, rounds=6)
    monkeypatch.setattr(gemms.Session, "make", lambda self, operands: Door(operands, self.terms))
    return found


def test_each_gemm_is_timed_in_both_modes_and_checked(session):
    found, casts = gemms.linear(SHAPE, "layer", session)
    assert [g.place for g in found] == [f"up {p} {m}" for p in ("fprop", "dgrad", "wgrad") for m in GemmMode]
    assert all(g.bf16_seconds == g.recipe_seconds == [1e-3] * 6 for g in found)
    assert {g.error for g in found} == {0.0}
    assert all(0 < (g.bf16_error or 0) < 0.003 for g in found)
    assert [(g.formats, g.accumulation, g.output, g.accumulates) for g in found] == [
        (("e4m3", "e4m3"), "split", "bfloat16", False)
    ] * 6
    assert [g.casts for g in found] == [[], ["x"], [], ["dy"], [], []]
    assert [(c.operand, c.before, c.directions, c.elements) for c in casts] == [
        ("x", "fprop", 2, 64 * 32),
        ("dy", "dgrad", 2, 64 * 96),
    ]


def test_main_gradients_add_up_and_are_checked(session, monkeypatch):
    monkeypatch.setattr(torch, "addmm", lambda main, a, b, out_dtype, out: out.add_(a.float() @ b.float()))
    found, _ = gemms.linear(SHAPE, "layer", replace(session, terms=GemmTerms(main_grads=True)))
    wgrad = [g for g in found if g.gemm == "wgrad"]
    assert [(g.output, g.accumulates) for g in wgrad] == [("float32", True)] * 2
    assert all(g.error == 0 for g in wgrad)


def test_an_element_that_nothing_wrote_is_a_failure(session, monkeypatch):
    real = Graph.run

    def lazy(self):
        real(self)
        if self.outputs[0] is not None:
            self.outputs[0][0, 0] = float("nan")

    monkeypatch.setattr(Graph, "run", lazy)
    found, _ = gemms.linear(SHAPE, "layer", session)
    assert {g.failed for g in found} == {"a result is not finite: an element was not written, or is wrong"}


def test_a_gemm_that_raises_is_kept_with_its_reason(session, monkeypatch):
    def broken(self, product):
        if product == "wgrad":
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nat line 3")
        return BF16Gemms.gemm(self, product)

    monkeypatch.setattr(Door, "gemm", broken)
    found, _ = gemms.linear(SHAPE, "layer", session)
    assert {g.gemm: g.failed for g in found} == {
        "fprop": "",
        "dgrad": "",
        "wgrad": "RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED",
    }


def test_groups_run_as_one_batched_gemm(session):
    found, casts = gemms.linear(GemmShape("experts up", 64, 96, 32, groups=4), "layer", session)
    assert {(g.groups, g.failed) for g in found} == {(4, "")}
    assert {g.error for g in found} == {0.0}
    assert all(0 < (g.bf16_error or 0) < 0.003 for g in found)
    assert found[0].flops == 2 * 64 * 96 * 32 * 4
    assert casts[0].elements == 64 * 32 * 4


def test_too_little_memory_says_what_would_fit():
    request = gemms.Request("llama3-405b", shapes.get("llama3-405b"))
    assert gemms.too_large(request, 28 * 2**30) == ""
    assert gemms.too_large(request, 24 * 2**30).endswith("; --no-head fits")
    assert gemms.too_large(request, 20 * 2**30).endswith("; --micro-batch 1 --sequence 1024 --no-head fits")
    assert gemms.too_large(request, 2**30).endswith("; no batch of this model fits")
    wide = gemms.Request("codonfm-5b", shapes.get("codonfm-5b"))
    half = gemms.bytes_needed(gemms.largest(wide), 1) // 2
    assert gemms.too_large(wide, half).endswith("; --micro-batch 14 fits")
    assert gemms.too_large(gemms.Request("shapes", shapes=(SHAPE,)), 2**10).endswith("give a smaller M")


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
