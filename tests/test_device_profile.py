"""The profile of a device: what it measures, on a CPU with small sizes, and how its record is kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from fp8parity import cli
from fp8parity.recipes import registry
from fp8parity.records.storage import load_record, name_of
from fp8parity.records.times import DeviceProfile, Part, PartTime
from fp8parity.timing import profile as device_profile
from fp8parity.timing.profile import Sizes
from fp8parity.training import hardware
from fp8parity.workload.models import ModelConfig
from fp8parity.workload.shapes import ModelShape, Workload

NANO = ModelConfig("nano", dim=64, layers=1, heads=2, kv_heads=1, hidden=128)
SMALL = Sizes(
    blocks=(Workload(ModelShape("block", 64, 128, 2, 1, 32, 1), 2, 32),),
    attention=((NANO, 2, 32), (NANO, 1, 64)),
    ends=((64, 64, 256),),
    optimizer=(NANO,),
    copy=2**16,
    peak=64,
)


@pytest.fixture(scope="module")
def profile() -> DeviceProfile:
    return device_profile.measure(torch.device("cpu"), SMALL, "s")


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
    assert optimizer.sizes == {"parameters": NANO.parameters, "tensors": 12}


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
