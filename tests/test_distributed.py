"""AutoModel's FSDP options on two gloo ranks: FP8 all-gather and scale precompute, for the tensorwise recipe."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fp8parity.recipes import RECIPES, apply
from fp8parity.records.cell import Execution
from fp8parity.training.step import cross_entropy
from fp8parity.workload import corpus, models
from fp8parity.workload.presets import presets
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

pytestmark = pytest.mark.slow


def train(all_gather: bool) -> list[float]:
    """Losses of three steps on this rank."""
    recipe = RECIPES["ao-tensorwise"]
    if all_gather:
        recipe = replace(recipe, options=(("enable_fsdp_float8_all_gather", True),))
    converted = apply(models.build(presets()["tiny"].model, 0), recipe, Execution.EMULATED, tokens=256)
    mesh = init_device_mesh("cpu", (2,))
    for layer in converted.model.get_submodule("layers").children():
        fully_shard(layer, mesh=mesh)
    fully_shard(converted.model, mesh=mesh)
    optimiser = torch.optim.AdamW(converted.model.parameters(), lr=1e-3, foreach=False)
    losses = []
    for step in range(3):
        loss = cross_entropy(converted.model, *corpus.load("topics").batch(dist.get_rank(), step, 2, 128))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if all_gather:
            from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

            precompute_float8_dynamic_scale_for_fsdp(converted.model)
        losses.append(loss.item())
    return losses


def both(rank: int, path: str) -> None:
    """Train without and with the FP8 all-gather. The first rank keeps the losses."""
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    losses = [train(False), train(True)]
    if rank == 0:
        torch.save(losses, f"{path}.losses")
    dist.destroy_process_group()


def run(path: Path) -> list[list[float]]:
    """Losses of the first of two processes that run this file. Each trains twice: to start and to import takes longer than to train."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "fixtures"), "OMP_NUM_THREADS": "1"}
    ranks = [subprocess.Popen([sys.executable, __file__, str(path), str(r)], env=environment) for r in range(2)]
    assert [p.wait(timeout=300) for p in ranks] == [0, 0]
    return torch.load(f"{path}.losses")


def test_fp8_all_gather_trains_as_the_bf16_one_does(tmp_path):
    plain, gathered = run(tmp_path / "ranks")
    assert plain[2] < plain[0]
    assert gathered[0] == plain[0]  # the same codes are gathered as were made after the gather
    assert abs(gathered[2] / plain[2] - 1) < 2e-3


if __name__ == "__main__":
    both(int(sys.argv[2]), sys.argv[1])
