"""The profile of a GPU: its parts are timed once per size, and kernels of a block counted for theirs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from fp8parity import cli
from fp8parity.recipes import registry
from fp8parity.records.storage import load_record, name_of
from fp8parity.records.times import DeviceProfile, PartTime
from fp8parity.training import hardware
from fp8parity.workload.config import ModelConfig
from fp8parity.workload.shapes import ModelShape, Workload
from fp8parity_lab.prediction import Part
from fp8parity_lab.prediction import profile as device_profile
from fp8parity_lab.prediction.profile import Sizes, grouped
from fp8parity_lab.splitting import Category
from fp8parity_lab.splitting.kernels import Launch
from fp8parity_lab.splitting.linears import ROUNDS

CPU = torch.device("cpu")
SMALLEST = ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128)
SMALL = Sizes(
    blocks=(Workload(ModelShape("block", 64, 128, 2, 1, 32, 1), 2, 32),),
    attention=((SMALLEST, 2, 32), (SMALLEST, 1, 64)),
    ends=((64, 64, 256),),
    optimizer=(SMALLEST,),
    copy=2**16,
    peak=64,
)


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return device_profile.measure(CPU, SMALL, "s")


@pytest.mark.slow
def test_each_part_is_measured_once_per_size(profile):
    assert [(t.part, t.form) for t in profile.times] == [
        (Part.COPY, "eager"),
        (Part.LAUNCH, "eager"),
        (Part.OPTIMIZER, "compiled"),
        (Part.ENDS, "eager"),
        (Part.ATTENTION, "torch"),
        (Part.ATTENTION, "torch"),
        (Part.BLOCK_REST, "bf16"),
    ]
    assert all(0 < t.low <= t.seconds <= t.high < 60 for t in profile.times)
    [block] = profile.of(Part.BLOCK_REST)
    assert block.sizes == {"rows": 2, "length": 32, "dim": 64, "hidden": 128, "heads": 2, "kv_heads": 1}
    [optimizer] = profile.of(Part.OPTIMIZER)
    assert optimizer.sizes == {"parameters": SMALLEST.parameters, "tensors": 12}


def test_words_of_records_are_fixed():
    assert " ".join(Category) == "gemm quantize attention norm elementwise optimizer loss other idle"
    assert " ".join(Part) == "copy block-products block-attention block-rest attention ends optimizer launch"


def test_the_command_records_and_prints_the_profile(profile, tmp_path, monkeypatch, capsys):
    gpu = hardware.Hardware("h100", "cpu", (9, 0))
    monkeypatch.setattr(hardware, "detect", lambda requested: gpu)
    monkeypatch.setattr(registry, "preload", lambda capability: None)
    monkeypatch.setattr(hardware.Hardware, "current", lambda self: nullcontext())
    monkeypatch.setattr(hardware.Hardware, "gpus", lambda self, ranks: [])

    def measure(device: torch.device, session: str, progress: Callable[[PartTime], None]) -> DeviceProfile:
        for part in profile.times:
            progress(part)
        return profile

    monkeypatch.setattr(device_profile, "measure", measure)
    assert cli.main(["profile", "--records", str(tmp_path / "new")]) == 0
    out = capsys.readouterr().out
    assert "block-rest" in out and out.rstrip().endswith("bf16-device-native-topics-profile.json")
    assert load_record(tmp_path / "new" / name_of(profile)) == profile


# Parts of a block in a stack

GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma"
KERNELS = {GEMM: 5.0, ATTENTION: 3.0, "triton_per_fused_rms_norm_0": 2.0, "void at::native::elementwise_kernel<4>": 1.0}
"""The seconds of the kernels of a replay."""


def ran(replays: int, slower: float = 1.0) -> list[Launch]:
    """Replays; the last one took ``slower`` times as long, in the order of the profiler: by name."""
    made, now = [], 0.0
    for number in range(replays):
        for name, seconds in KERNELS.items():
            end = now + seconds * (slower if number == replays - 1 else 1.0)
            made.append(Launch(name, now, end))
            now = end + 0.5  # a gap, which is in no part
    return sorted(made, key=lambda launch: launch.name)


def test_each_kernel_counts_for_its_part_in_the_last_replays():
    found = grouped(ran(2 + 2 * ROUNDS, slower=3.0), 2 + 2 * ROUNDS, 2)
    assert found == {
        Part.BLOCK_PRODUCTS: [5.0] * (ROUNDS - 1) + [10.0],
        Part.BLOCK_ATTENTION: [3.0] * (ROUNDS - 1) + [6.0],
        Part.BLOCK_REST: [3.0] * (ROUNDS - 1) + [6.0],
    }


@pytest.mark.parametrize("kept", [slice(1, None), slice(len(KERNELS), None), slice(0, 0), slice(ROUNDS, -1)])
def test_missing_kernels_are_an_error(kept):
    """One kernel, as many as a replay has, all, and one of each replay are missing."""
    few = ran(ROUNDS)[kept]
    with pytest.raises(ValueError, match=rf"saw {len(few)} kernels in {ROUNDS} equal replays"):
        grouped(few, ROUNDS, 1)


@pytest.mark.parametrize(("name", "part"), [(GEMM, "block-products"), (ATTENTION, "block-attention")])
def test_a_part_without_a_kernel_is_an_error(name, part):
    """A new version of a library may name its kernels otherwise. Six minutes of a profile would end with a time of 0."""
    unknown = [replace(launch, name="new") if launch.name == name else launch for launch in ran(ROUNDS)]
    with pytest.raises(
        ValueError, match=rf"no kernel of a block is known as {part} \(fp8parity_lab/splitting/kernels.py\)"
    ):
        grouped(unknown, ROUNDS, 1)
