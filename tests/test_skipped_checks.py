"""Checks that cannot measure a cell give their reason; the check of codes names its second opinion."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from fp8parity.checks import codes
from fp8parity.checks.protocol import DISTRIBUTED
from fp8parity.recipes import RECIPES
from fp8parity.records.cell import Execution
from fp8parity.records.check_names import CHECKS
from sessions import cell

from conftest import subject

REASONS = [
    ("state", "te-current emulated mini", None),
    ("state", "te-current emulated small", r"its bounds were measured on up to \d+M parameters; this model has \d+M"),
    ("layers", "te-current emulated 1b", None),
    ("layers", "te-current fused tiny", None),
    ("layers", "te-current fused tiny-bias", "the fused layer is made without biases"),
    ("layers", "te-current native tiny-bias", None),
    ("accumulation", "te-nvfp4 emulated tiny", r"fprop_x \(e2m1 1x16 nvfp4\) does not hold the test values exactly"),
    ("accumulation", "te-block emulated tiny", None),
    ("gemm", "te-nvfp4 emulated tiny", None),
    ("large", "te-block emulated tiny", r"tensors over 2\*\*31 bytes need a GPU"),
    ("autotune", "ao-rowwise native nano", "Inductor chooses between configurations of Triton kernels, on a GPU"),
    ("modes", "te-current emulated nano", "compiled and graphed steps are compared on a GPU"),
    ("checkpoint", "bf16 native nano", None),
    ("checkpoint", "te-delayed emulated nano", None),
    ("checkpoint", "ao-rowwise emulated nano", "it keeps nothing from step to step, and plain weights"),
    ("defaults", "te-current-pow2 emulated tiny", "a variant's options are compared at its conversion"),
    ("dispatch", "te-current native tiny-moe", "a grouped GEMM of experts runs as one kernel or as several"),
    ("places", "te-current fused tiny", "a fused layer hides its linears"),
    ("experts", "te-current emulated micro", "micro has no experts"),
    ("experts", "te-current emulated tiny-moe", None),
    ("sharded", "bf16 native micro", None),
    ("sharded checkpoint", "ao-rowwise emulated micro", "its weights are plain tensors"),
    ("tensor parallel", "ao-rowwise emulated micro", "has no tensor-parallel linear that this check knows"),
    ("tensor parallel", "bf16 native micro", "2 ranks cannot share the key heads of micro"),
    ("amax groups", "ao-tensorwise emulated micro", "reduces no amaxes of delayed scaling over ranks"),
    ("weak scaling", "ao-tensorwise emulated micro", "CPU time is never gated"),
]


@pytest.mark.parametrize(("check", "of", "why"), REASONS, ids=lambda x: str(x)[:40])
def test_skip_reason_of_a_check(session, check, of, why):
    ranked = cell(*of.split()).model_copy(update={"ranks": 1 + (CHECKS[check].suite == DISTRIBUTED)})
    found = session.skip_reason(check, ranked)
    assert found is None if why is None else re.search(why, found or ""), found


def test_second_opinion_on_nvfp4_is_tes_reference(session, monkeypatch):
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
