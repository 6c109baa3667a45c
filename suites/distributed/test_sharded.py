"""Does a run that is spread over ranks train as on one, with the bytes on the wire that it should have? Limits: golden/policy.toml.

Each test starts its ranks with torchrun: two (or three) gloo ranks on a CPU, and as many NCCL ranks as the cell says on GPUs.
"""

import pytest


def test_sharded(ranked_cell, parity):
    """FSDP2, HSDP, every precision policy, FP8 all-gather, FP8 primary weights: losses and gradients of one rank, and the bytes."""
    parity.numerics("sharded", ranked_cell)


def test_checkpoint(ranked_cell, parity):
    """What DCP saves comes back whole, on as many ranks and on one: no tensor gains or loses 0.01%, and the next step is the same."""
    parity.numerics("sharded checkpoint", ranked_cell)


def test_uneven_shards(odd_cell, parity):
    """Rows that three ranks cannot share evenly, and a rank without any row of a parameter, change nothing."""
    parity.numerics("uneven shards", odd_cell)


def test_tensor_parallel(split_cell, parity):
    """Linears that are split over ranks give the losses and gradients of whole ones."""
    parity.numerics("tensor parallel", split_cell)


@pytest.mark.quantized
def test_amax_groups(ranked_cell, parity):
    """Delayed scales are the same on all ranks of their group, and differ when every rank is a group of its own."""
    parity.numerics("amax groups", ranked_cell)


@pytest.mark.quantized
def test_weak_scaling(scaled_cell, parity):
    """The published tables: tokens per second and GPU of BF16 and of the recipe, with the same work for each rank."""
    parity.numerics("weak scaling", scaled_cell)
