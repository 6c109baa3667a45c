"""Checkpoints on one device: sound ones pass, and what a checkpoint loses or rounds is red with the blame on the right side."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from fp8parity.checks import checkpoint
from fp8parity.checks.checkpoint import PLAIN, QUANTIZED, arms, changed, differences
from fp8parity.distributed import sharding as sharded
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from te_stand_in import stand_in as stand_in

from conftest import measured


@pytest.mark.parametrize(
    ("recipe", "execution", "kept"),
    [
        ("bf16", "native", [PLAIN]),
        ("te-delayed", "emulated", [PLAIN]),
        ("te-current", "emulated", [PLAIN, QUANTIZED]),
        ("te-current", "native", [PLAIN, QUANTIZED]),
        ("te-current", "fused", [PLAIN]),
        ("te-current-ends-bf16-fp8-weights", "native", [QUANTIZED]),
    ],
)
def test_ways_to_keep_weights(session, stand_in, recipe, execution, kept):
    assert list(arms(session.subject(recipe, execution))) == kept


def test_native_cells_on_a_stand_in(session, stand_in):
    """Transformer Engine's modules as the adapter uses them."""
    found = measured(checkpoint.measure(session.subject("te-current", "native")))
    assert len(found) == 18
    assert {v for k, v in found.items() if k.startswith(("changed", "step"))} == {0.0}
    assert {round(v, 12) for k, v in found.items() if "gain" in k} == {1.0}


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ({"a": torch.ones(2)}, 0),
        ({"b": torch.ones(2)}, 2),
        ({"a": torch.tensor([1.0, 1 + 2**-20])}, 1),
        ({"a": torch.ones(2, 1)}, 1),
        ({"a": torch.ones(2, dtype=torch.float64)}, 1),
        ({"a": torch.tensor([1.0, torch.nan])}, 1),
    ],
)
def test_missing_and_unequal_tensors_count_as_changed(after, count):
    assert changed({"a": torch.ones(2)}, after) == count


def test_difference_is_relative_to_the_unbroken_step():
    before = {"a": torch.tensor([3.0, 4.0]), "none": torch.zeros(2), "b": torch.tensor([2.0])}
    after = {"a": torch.tensor([3.0, 14.0]), "none": torch.ones(2), "b": torch.tensor([torch.nan])}
    assert differences(before, after) == pytest.approx([2.0, torch.nan], nan_ok=True)


def test_te_state_is_compared_by_its_tensors():
    """Its bytes also hold what a new model has not got yet."""

    def packed(**held: Any) -> dict[str, Any]:
        import pickle

        return {
            "m._extra_state": torch.frombuffer(bytearray(pickle.dumps(held)), dtype=torch.uint8),
            "n._extra_state": torch.empty(0),
        }

    scale = torch.tensor([3.0])
    assert checkpoint._extra_state(packed(scale_fwd=scale, recipe="x")) == {"m._extra_state.scale_fwd": scale}
    assert checkpoint._extra_state({"m._extra_state": io.BytesIO()}) == {}


@pytest.mark.parametrize(
    ("recipe", "names"),
    [
        ("te-current-ends-bf16-fp8-weights", ["fp8 primary weights"]),
        ("te-current", ["fsdp", "hsdp", "reduced once", "bf16 reduction", "bf16 parameters", "fp8 primary weights"]),
    ],
)
def test_quantized_weights_decide_the_sharded_arms(recipe, names):
    assert [arm.name for arm in sharded.arms(RECIPES[recipe], Execution.NATIVE, 2)] == names
