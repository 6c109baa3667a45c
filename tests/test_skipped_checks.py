"""Second opinions of checks, and checks that cannot measure: both say why."""

from __future__ import annotations

from dataclasses import replace

import torch
from fp8parity.checks import codes
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from processes import run

from conftest import subject


def test_second_opinion_on_nvfp4_is_the_reference(session, monkeypatch):
    on_cpu = subject(session, "te-nvfp4")
    on_gpu = replace(on_cpu, device=torch.device("cuda"))
    assert codes.second_opinion(on_gpu) is None  # TE is not installed here
    monkeypatch.setattr(codes, "installed", lambda name: True)
    assert codes.second_opinion(on_cpu) is None
    assert codes.second_opinion(on_gpu) == f"the vendor's reference {on_gpu.recipe.reference}"
    assert (
        codes.second_opinion(replace(on_gpu, execution=Execution.NATIVE))
        == f"the vendor's reference {on_gpu.recipe.reference}"
    )
    assert codes.second_opinion(replace(on_gpu, recipe=RECIPES["te-block"])) is None
    assert codes.second_opinion(replace(on_cpu, recipe=RECIPES["ao-rowwise"])) == "the vendor torchao"


def test_check_that_cannot_measure_is_skipped(tmp_path):
    only = "(accumulation and te-nvfp4-emulated) or (large and bf16)"
    done = run(
        "pytest", "-rs", "suites/numerics/test_device.py", "-k", only, "--parity-records", str(tmp_path), COLUMNS="250"
    )
    assert done.returncode == 1, done.stdout  # nothing ran
    assert "fprop_x (e2m1 1x16 nvfp4) does not hold the test values exactly" in done.stdout
    assert "tensors over 2**31 bytes need a GPU" in done.stdout
    assert "2 skipped" in done.stdout
    assert not list(tmp_path.glob("*.json"))
