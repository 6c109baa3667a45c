"""The SQNR of pairs of tensors: its special values, and that many pairs are read together."""

import math

import pytest
import torch
from fp8parity.numerics.operands import decibels, sqnr, sqnrs


@pytest.mark.parametrize(
    ("signal", "noise", "value"),
    [
        (10.0, 1.0, 20.0),
        (1.0, 10.0, -20.0),
        (1.0, 0.0, math.inf),
        (0.0, 0.0, math.inf),
        (0.0, 1.0, -math.inf),
        (1.0, math.inf, -math.inf),
        (math.nan, 1.0, math.nan),
        (1.0, math.nan, math.nan),
        (math.inf, math.inf, math.nan),
    ],
)
def test_decibels_of_special_norms(signal, noise, value):
    assert decibels(signal, noise) == pytest.approx(value, nan_ok=True)


def test_each_pair_has_its_own_number_in_order():
    one = torch.tensor([3.0, 4.0])
    pairs = [
        (one, one),
        (one, one * 1.1),
        (one, torch.zeros(2)),
        (one, torch.tensor([math.nan, 4.0])),
        (one[:1], -one[:1]),
    ]
    assert sqnrs(iter(pairs)) == pytest.approx(
        [math.inf, 20.0, 0.0, math.nan, -20 * math.log10(2)], nan_ok=True, rel=1e-6
    )
    assert [sqnr(*pair) for pair in pairs] == pytest.approx(sqnrs(pairs), nan_ok=True)
    assert sqnrs([]) == []


def test_pairs_are_read_with_one_copy(monkeypatch):
    """Each copy to the host waits for a GPU that other processes use, too."""
    copies: list[torch.Size] = []
    real = torch.Tensor.tolist

    def copied(tensor: torch.Tensor) -> object:
        copies.append(tensor.shape)
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", copied)
    monkeypatch.setattr(torch.Tensor, "__float__", lambda tensor: pytest.fail("a number was read by itself"))
    sqnrs([(torch.ones(n), torch.zeros(n)) for n in range(1, 50)])
    assert copies == [(49, 2)]
