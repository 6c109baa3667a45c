"""Does a run on several ranks train as on one, with the expected traffic?

Each test starts its ranks with torchrun: two (or three) gloo ranks on a CPU, and as many NCCL ranks as the cell says on
GPUs. The limits are in golden/policy.toml.
"""

import pytest


def test_sharded(ranked_cell, parity):
    """Compare losses, gradients and bytes of every kind of sharding with one rank.

    FSDP2, HSDP, every precision policy, FP8 all-gather and FP8 primary weights.
    """
    parity.numerics("sharded", ranked_cell)


def test_checkpoint(ranked_cell, parity):
    """Load a checkpoint of DCP on as many ranks and on one: the next step is equal."""
    parity.numerics("sharded checkpoint", ranked_cell)


def test_uneven_shards(odd_cell, parity):
    """Shard rows over three ranks unevenly, and give a rank no row of a parameter."""
    parity.numerics("uneven shards", odd_cell)


def test_tensor_parallel(split_cell, parity):
    """Compare linears that are split over ranks with complete ones."""
    parity.numerics("tensor parallel", split_cell)


def test_expert_exchange(ranked_cell, parity):
    """Send tokens to the ranks of their experts as codes and scales, and back."""
    parity.numerics("expert exchange", ranked_cell)


@pytest.mark.quantized
def test_amax_groups(ranked_cell, parity):
    """Share delayed scales in a group of ranks, and not between groups."""
    parity.numerics("amax groups", ranked_cell)


@pytest.mark.quantized
def test_weak_scaling(scaled_cell, parity):
    """Measure tokens per second and GPU with the same work for each rank."""
    parity.numerics("weak scaling", scaled_cell)
