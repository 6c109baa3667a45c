"""The check ``attention`` on a made-up FP8 attention: one repeat among many that differs is seen, wherever it differs, and red."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fp8parity.checks import attention
from fp8parity.judging import numerics
from fp8parity.recipes.adapter import AttentionShape
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.workload.models import RMSNorm
from fp8parity.workload.rotary import angles, plain, rotate, rotations
from sessions import cell, measured_in, stored, verdict
from torch import Tensor

from conftest import measured, subject

EPSILON = 2.0**-6
LAST = attention.REPEATS["cpu"]
REFERENCE = attention.reference()


def rounded(x: Tensor) -> Tensor:
    """The values of x in E5M2, with the gradient of x."""
    return x + (x.to(torch.float8_e5m2).to(x.dtype) - x).detach()


def with_gradient(x: Tensor, factor: float) -> Tensor:
    """The values of x, with a gradient that is ``factor`` times as large."""
    return x.detach() + factor * (x - x.detach())


class Vendor:
    """FP8 attention that rounds its inputs. The module ``odd`` changes what ``change`` changes."""

    def __init__(self, odd: int, change: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self.odd, self.change, self.made = odd, change, 0

    def skip_reason(self, recipe: object, shape: AttentionShape) -> str | None:
        return "no groups" if shape.kv_heads else None

    def selected(self, *_: object) -> str:
        return "what was made up"

    def attention(self, recipe: object, shape: AttentionShape, fp8: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        if not fp8:
            return attention.reference(shape)
        if self.odd < 0:
            return lambda *t: attention.reference(shape)(*map(rounded, t))
        number, self.made = self.made, self.made + 1
        return lambda *t: (self.change if number == self.odd else REFERENCE)(*map(rounded, t))


CHANGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "output": lambda q, k, v: REFERENCE(q, k, v) * (1 + EPSILON),
    "dq": lambda q, k, v: REFERENCE(with_gradient(q, 1 + EPSILON), k, v),
    "dk": lambda q, k, v: REFERENCE(q, with_gradient(k, 1 + EPSILON), v),
    "dv": lambda q, k, v: REFERENCE(q, k, with_gradient(v, 1 + EPSILON)),
}


@pytest.mark.parametrize(
    ("where", "odd", "expected"),
    [*((name, LAST, EPSILON) for name in CHANGES), ("dq", 0, EPSILON), ("dq", LAST + 1, 0)],
)
def test_one_repeat_that_differs_is_seen(session, monkeypatch, where, odd, expected):
    """The first module is the one that is compared with FP64, and no module comes after the last repeat."""
    monkeypatch.setattr(attention, "SHAPE", AttentionShape(batch=1, length=16, heads=2, head_dim=8))
    monkeypatch.setattr(attention, "CASES", ())
    monkeypatch.setattr(attention, "fp8_attention", lambda name: Vendor(odd, CHANGES[where]))
    values = measured(attention.measure(subject(session, "te-delayed")))
    assert values["repeat difference @ new modules"] == pytest.approx(expected, rel=0.25)
    assert len(values) == 9


def faulty(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Attention of BF16 with a fault for some shapes and values, as reports have them."""

    def attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, enable_gqa: bool) -> Tensor:
        if q.dtype == torch.float64:
            return real(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa)
        if enable_gqa:  # a query head reads another head of k
            k = k.roll(1, 1)
        if q.shape[-1] == 256 and not is_causal:  # cudnn-frontend 981: half of a tile is overwritten
            q = torch.cat((q[:, :, :128], q[:, :, 128:].roll(1, 2)), 2)
        if q.shape[-1] == 96:  # padded to 128, with the scale of 128
            q = q * (96 / 128) ** 0.5
        if not enable_gqa and (q.double() @ k.double().mT).amax() * q.shape[-1] ** -0.5 < -88.7:
            q.register_hook(lambda gradient: gradient * math.nan)  # trl 7181: only dq is NaN
        return real(q, k, v, is_causal=is_causal, enable_gqa=enable_gqa)

    return attend


def red(record: Measurements) -> tuple[str, set[str]]:
    found = verdict(record)
    return found.status, {place.partition(", ")[2] for place, _ in found.lines if " @ " in place}


def test_an_error_of_a_backend_is_no_missing_backend(monkeypatch):
    def broken(shape: AttentionShape) -> Callable[..., Tensor]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(attention, "_cases", lambda device: iter([(attention.CASES[0], [], {})]))
    monkeypatch.setattr(attention, "reference", broken)
    with pytest.raises(RuntimeError, match="illegal memory"):
        attention._of_torch(torch.device("cpu"))


@pytest.mark.slow
def test_torch_backends_pass_in_every_case(session, eager):
    record = session.measure("attention", cell("bf16", "native"))
    assert red(record) == ("pass", set())
    assert {m.where for m in record.values} >= {f"{b}, {c.name}" for b in ("math", "flash") for c in attention.CASES}
    assert {n.partition(",")[0] for n in record.notes} == {
        "skipped efficient",
        "skipped cudnn",
    } or torch.cuda.is_available()


@pytest.mark.slow
def test_fault_of_a_shape_or_range_is_red_there(session, monkeypatch, eager):
    functional = SimpleNamespace(scaled_dot_product_attention=faulty(torch.nn.functional.scaled_dot_product_attention))
    monkeypatch.setattr(attention, "F", functional)
    wrong = {"grouped heads", "head 256, no mask", "head 96", "very low logits"}
    assert red(session.measure("attention", cell("bf16", "native"))) == ("fail", wrong)


def test_fp8_attention_is_measured_in_each_case(session, monkeypatch):
    """A vendor without a shape says so in a note, and its BF16 attention is measured there."""
    monkeypatch.setattr(attention, "SHAPE", AttentionShape(batch=1, length=16, heads=2, head_dim=8))
    small = {c.name: replace(c, shape=replace(c.shape, length=64)) for c in attention.CASES}
    monkeypatch.setattr(attention, "CASES", tuple(small[name] for name in ("head 64", "grouped heads", "no mask")))
    monkeypatch.setattr(attention, "fp8_attention", lambda name: Vendor(-1, REFERENCE))
    values, notes = attention.measure(subject(session, "te-delayed"))
    found = {f"{m.metric} @ {m.where}": m.value for m in values}
    assert all(12 < found[f"fp8 attention sqnr @ {name}"] < 30 for name in ("head 64", "no mask"))
    assert "fp8 attention sqnr @ grouped heads" not in found and "skipped grouped heads: no groups" in notes
    assert all(found[f"bf16 attention sqnr @ te, {name}"] > 40 for name in ("head 64", "grouped heads", "no mask"))


@pytest.mark.parametrize(("value", "status"), [(0.0, "pass"), (1e-9, "fail"), (math.nan, "fail")])
def test_repeat_must_agree_to_the_bit(value, status):
    own, rules = stored()
    record = measured_in("h100-gate-sixth", "te-delayed-tiny-native", "attention")
    again = Measurement(metric="repeat difference", where="new modules", value=value)
    verdict = numerics.judge(record.model_copy(update={"values": [*record.values, again]}), rules, own.numbers)
    assert verdict.status == status
    assert [r.metric for r in verdict.rows if r.outside] == ["repeat difference"] * (status == "fail")
    assert not verdict.unmeasured


BASE, HEADS, WIDTH, LENGTH = 10_000.0, 3, 16, 32


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Heads [B, S, heads, head_dim], and the gradient of the rotated ones."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(2, LENGTH, HEADS, WIDTH, generator=generator).to(dtype) for _ in range(2))
    return x.requires_grad_(), grad


def table(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return rotations(BASE, WIDTH, LENGTH, torch.device("cpu")).to(dtype)


def differentiated(of, inputs, grad):
    """The value and the gradients of a function of ``inputs``."""
    y = of(*inputs)
    return y, *torch.autograd.grad(y, inputs, grad)


def same(found, wanted) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rotation_equals_the_plain_formula_to_the_bit(dtype):
    """In a compiled block, too, which runs the plain formula."""
    x, grad = operands(dtype)
    angle = angles(BASE, WIDTH, LENGTH)
    cos, sin = (t.float()[:, None] for t in (angle.cos(), angle.sin()))

    def plain(x):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(dtype)

    wanted = differentiated(plain, [x], grad)
    for rotated in (rotate, torch.compile(rotate, backend="aot_eager")):
        assert same(differentiated(lambda x, rotated=rotated: rotated(x, table()), [x], grad), wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: its kernel does not run")
@pytest.mark.parametrize("width", [32, 64, 96, 256])
@pytest.mark.parametrize("by_head", [False, True], ids=["positions first", "heads first"])
def test_gpu_kernel_equals_the_formula_to_the_bit(width, by_head):
    """For the layouts of projections and of attention's gradients, and for widths that are no power of two."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, grad = torch.randn(2, 3, 70, 5, width, generator=generator, device="cuda").bfloat16()
    if by_head:
        x, grad = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, grad))
    rotation = rotations(BASE, width, 70, x.device)
    found = differentiated(lambda x: rotate(x, rotation), [x.requires_grad_()], grad)
    wanted = differentiated(lambda x: plain(x, rotation), [x], grad)
    assert same(found, wanted) and found[0].is_contiguous()


@pytest.mark.parametrize("dim", [64, 1000])
def test_norm_in_bf16_computes_in_fp32(dim):
    generator = torch.Generator().manual_seed(0)
    norm = RMSNorm(dim, 1e-5).bfloat16()
    norm.weight.data += torch.randn(dim, generator=generator).bfloat16() / 8
    x, grad = (torch.randn(4, 7, dim, generator=generator).bfloat16() for _ in range(2))
    inputs = [x.requires_grad_(), norm.weight]

    def plain(x, weight):
        return torch.nn.functional.rms_norm(x.float(), (dim,), weight.float(), norm.eps).bfloat16()

    wanted = differentiated(plain, inputs, grad)
    for normed in (norm, torch.compile(norm, backend="aot_eager")):
        assert same(differentiated(lambda x, _, normed=normed: normed(x), inputs, grad), wanted)
