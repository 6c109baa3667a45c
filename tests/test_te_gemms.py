"""The door to TE's single GEMMs on a stand-in for the package: which operands, layouts, accumulation and casts it asks for."""

from __future__ import annotations

import enum
import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from fp8parity import recipes
from fp8parity.numerics.operands import FAMILIES, Operands, draw
from fp8parity.recipes import adapters
from fp8parity.recipes.adapter import GemmTerms


class DType(enum.IntEnum):
    kFloat8E4M3 = 7
    kFloat8E5M2 = 8


class Quantized:
    """A tensor as TE's storages are: no torch.Tensor, without a ``dtype``."""

    def __init__(self, tensor: torch.Tensor, dtype: DType, usage: tuple[bool, bool]) -> None:
        self.tensor, self._fp8_dtype, self.usage = tensor, dtype, usage


class Quantizer:
    def __init__(self, dtype: DType) -> None:
        self.dtype, self.internal, self.usage, self.made = dtype, False, (False, False), 0
        self.scale = torch.ones(())

    def set_usage(self, *, rowwise: bool, columnwise: bool) -> None:
        self.usage = (rowwise, columnwise)

    def __call__(self, tensor: torch.Tensor) -> Quantized:
        assert self.internal
        self.made += 1
        return Quantized(tensor, self.dtype, self.usage)


class RecipeState:
    @staticmethod
    def create(made: object, *, mode: str, num_quantizers: int) -> SimpleNamespace:
        dtype = DType.kFloat8E4M3 if mode == "forward" else DType.kFloat8E5M2
        return SimpleNamespace(make_quantizers=lambda: [Quantizer(dtype) for _ in range(num_quantizers)])


CALLS: list[dict[str, object]] = []


def general_gemm(
    A: Quantized,
    B: Quantized,
    out_dtype=None,
    layout="TN",
    out=None,
    accumulate=False,
    grad=False,
    use_split_accumulator=False,
):
    """TE's: column-major A and B, so the result is op(B) op(A) for row-major tensors."""
    assert A.usage[0 if layout[0] == "T" else 1]
    assert B.usage[1 if layout[1] == "T" else 0]
    CALLS.append({"layout": layout, "split": use_split_accumulator, "accumulate": accumulate, "grad": grad})
    a, b = A.tensor.float(), B.tensor.float()
    product = (b.T if layout[1] == "T" else b) @ (a.T if layout[0] == "T" else a)
    if out is None:
        return (product.to(out_dtype), None)
    return (out.add_(product) if accumulate else out.copy_(product), None)


def general_grouped_gemm(A, B, out, quantization_params, out_dtype, m_splits=None, single_output=False, **terms):
    """TE's: one product for each group. With ``single_output`` all go into one matrix, one below the other."""
    assert len(A) == len(B) == len(quantization_params)
    into = list(out[0].split(m_splits)) if single_output else out
    assert len(into) == len(A)
    for a, b, c in zip(A, B, into, strict=True):
        general_gemm(a, b, out_dtype=out_dtype, out=c, **terms)


def split_quantize(tensor: torch.Tensor, splits: list[int], quantizers: list[Quantizer]) -> list[Quantized]:
    return [q(part) for q, part in zip(quantizers, tensor.split(splits), strict=True)]


@pytest.fixture
def te_gemms(monkeypatch):
    name = "transformer_engine"
    parts: dict[str, dict[str, object]] = {
        name: {}, f"{name}.pytorch": {}, f"{name}.pytorch.module": {},
        f"{name}.pytorch.cpp_extensions": {"general_gemm": general_gemm, "general_grouped_gemm": general_grouped_gemm},
        f"{name}_torch": {"split_quantize": split_quantize},
        f"{name}.pytorch.module.base": {"_2X_ACC_FPROP": False, "_2X_ACC_DGRAD": True, "_2X_ACC_WGRAD": True},
        f"{name}.pytorch.quantization": {"RecipeState": RecipeState},
    }  # fmt: skip
    for path, content in parts.items():
        module = ModuleType(path)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, path, module)
    sys.modules[f"{name}.pytorch.module"].base = sys.modules[f"{name}.pytorch.module.base"]  # type: ignore[attr-defined]
    module_name = "fp8parity.recipes.adapters.te_gemms"
    monkeypatch.delitem(sys.modules, module_name, raising=False)
    CALLS.clear()
    yield importlib.import_module(module_name)
    sys.modules.pop(module_name, None)
    vars(adapters).pop("te_gemms", None)


def door(te_gemms, recipe="te-current", made=None, **terms):
    operands = draw(FAMILIES[0])
    found = te_gemms.TEGemms(recipes.get(recipe), made or SimpleNamespace(), operands, GemmTerms(**terms))
    for cast in found.casts:
        found.cast(cast)
    return found, operands.product()


def test_products_have_their_layouts_and_accumulation(te_gemms):
    made, wanted = door(te_gemms)
    for product, exact in wanted.items():
        assert float((made.gemm(product).double() - exact).norm() / exact.norm()) < 0.003
    assert [(c["layout"], c["split"], c["grad"]) for c in CALLS] == [
        ("TN", False, False),
        ("NN", True, True),
        ("NT", True, True),
    ]
    assert [made.formats(p) for p in wanted] == [("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e4m3")]


def test_recipe_sets_the_accumulation_unless_published(te_gemms):
    split = {f"fp8_gemm_{p}": SimpleNamespace(use_split_accumulator=p != "dgrad") for p in ("fprop", "dgrad", "wgrad")}
    for published, wanted in ((False, [True, False, True]), (True, [False] * 3)):
        made, products = door(te_gemms, made=SimpleNamespace(**split), published=published)
        assert [made.split(p) for p in products] == wanted
        assert made.quantizers["w"].usage == (True, not published)


def test_step_quantizes_six_directions_and_keeps_operands(te_gemms):
    made, wanted = door(te_gemms)
    before = dict(made.quantized)
    for product in wanted:
        made.step(product)
    assert {n: q.made - 1 for n, q in made.quantizers.items()} == {"x": 1, "w": 1, "dy": 1}
    assert sum(c.directions for c in made.casts) == 6
    assert made.quantized == before


def test_wgrad_adds_to_an_fp32_main_gradient(te_gemms):
    made, wanted = door(te_gemms, main_grads=True)
    made.gemm("wgrad")
    out = made.gemm("wgrad")
    assert out.dtype == torch.float32
    assert out is made.main_grad
    assert float((out.double() - 2 * wanted["wgrad"]).norm() / wanted["wgrad"].norm()) < 1e-5


def test_delayed_scale_is_that_of_the_amax(te_gemms):
    made, _ = door(te_gemms, "te-delayed")
    amax = made.operands.dy.abs().amax().float()
    assert float(made.quantizers["dy"].scale) == pytest.approx(57344 / float(amax), rel=1e-6)


@pytest.mark.parametrize("main_grads", [False, True])
def test_experts_run_as_one_grouped_gemm(te_gemms, main_grads):
    drawn = [draw(FAMILIES[0], repeat) for repeat in range(3)]
    operands = Operands(*(torch.stack([getattr(d, name) for d in drawn]) for name in ("x", "w", "dy")))
    made = te_gemms.TEGroupedGemms(
        recipes.get("te-current"), SimpleNamespace(), operands, GemmTerms(main_grads=main_grads)
    )
    for cast in made.casts:
        made.cast(cast)
    for product in ("fprop", "dgrad", "wgrad"):
        CALLS.clear()
        out = made.gemm(product) if product == "wgrad" else made.step(product)
        exact = torch.stack([d.product()[product] for d in drawn])
        assert float((out.double() - exact).norm() / exact.norm()) < 0.003
        assert [c["split"] for c in CALLS] == [product != "fprop"] * 3
        assert made.formats(product)[0] == ("e4m3" if product == "fprop" else "e5m2")


def test_gemms_that_stay_in_bf16_are_refused(te_gemms):
    """Their quantizers would quantize the gradient, and the times would be those of te-current."""
    with pytest.raises(ValueError, match="te-current-backward-bf16: dgrad and wgrad stay in BF16"):
        door(te_gemms, "te-current-backward-bf16")
