"""The canary repeats, and its numbers are defined for every tensor. tests/faults/model.py has the faults that move it."""

from __future__ import annotations

import pytest
import torch
from faults.looks import canary_of, canary_verdict, sound_canary
from fp8parity.checks import canary


def test_it_repeats():
    sound = sound_canary()
    assert [m.value for m in canary_of()] == pytest.approx([m.value for m in sound], rel=1e-12)
    assert canary_verdict(sound).status == "pass"
    assert len(sound) == 218


def test_tensor_of_zeros_has_numbers():
    assert canary.fingerprint("x", torch.zeros(3, 4)) == (-400.0, 0.0)
    scale, direction = canary.fingerprint("x", torch.ones(4096))
    assert scale == pytest.approx(0.0)
    assert abs(direction) < 4
