"""The check ``attention`` on a made-up FP8 attention: one repeat among many that differs is seen, wherever it differs, and red."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from fp8parity.checks import attention
from fp8parity.judging import numerics
from fp8parity.judging.verdict import NumericsDetail
from fp8parity.recipes.adapter import AttentionShape
from fp8parity.records.schema import Measurement
from sessions import measured_in, stored
from torch import Tensor

from conftest import measured, subject

EPSILON = 2.0**-6
LAST = attention.REPEATS["cpu"]


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

    def fp8_attention(self) -> Vendor:
        return self

    def selected(self, *_: object) -> str:
        return "what was made up"

    def attention(self, recipe: object, shape: AttentionShape, fp8: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        if not fp8:
            return attention.reference
        number, self.made = self.made, self.made + 1
        return lambda *t: (self.change if number == self.odd else attention.reference)(*map(rounded, t))


CHANGES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "output": lambda q, k, v: attention.reference(q, k, v) * (1 + EPSILON),
    "dq": lambda q, k, v: attention.reference(with_gradient(q, 1 + EPSILON), k, v),
    "dk": lambda q, k, v: attention.reference(q, with_gradient(k, 1 + EPSILON), v),
    "dv": lambda q, k, v: attention.reference(q, k, with_gradient(v, 1 + EPSILON)),
}


@pytest.mark.parametrize("where", CHANGES)
@pytest.mark.parametrize(("odd", "expected"), [(0, EPSILON), (2, EPSILON), (LAST, EPSILON), (LAST + 1, 0)])
def test_one_repeat_that_differs_is_seen(session, monkeypatch, where, odd, expected):
    """The first module is the one that is compared with FP64, and no module comes after the last repeat."""
    monkeypatch.setattr(attention, "SHAPE", AttentionShape(batch=1, length=16, heads=2, head_dim=8))
    monkeypatch.setattr(attention, "adapter", lambda name: Vendor(odd, CHANGES[where]))
    values = measured(attention.measure(subject(session, "te-delayed")))
    assert values["repeat difference @ new modules"] == pytest.approx(expected, rel=0.25)
    assert len(values) == 9


@pytest.mark.parametrize(("value", "status"), [(0.0, "pass"), (1e-9, "fail"), (math.nan, "fail")])
def test_repeat_must_agree_to_the_bit(value, status):
    own, rules = stored()
    record = measured_in("h100-gate-sixth", "te-delayed-tiny-native", "attention")
    again = Measurement(metric="repeat difference", where="new modules", value=value)
    verdict = numerics.judge(record.model_copy(update={"values": [*record.values, again]}), rules, own.numbers)
    assert verdict.status == status
    assert isinstance(verdict.detail, NumericsDetail)
    assert [f.metric for f in verdict.detail.failing] == ["repeat difference"] * (status == "fail")
    assert not verdict.detail.unmeasured
