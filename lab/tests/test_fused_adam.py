"""TE's FusedAdam as it is written here: its arithmetic, and what a fault does to the master weights that it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from faults.looks import canary_of, canary_verdict
from fp8parity import cli
from fp8parity.checks import checkpoint
from fp8parity.checks.canary import SCHEDULE
from fp8parity.workload.optimizers import OPTIMIZERS
from fp8parity_lab.fused_adam import emulation, masters
from fp8parity_lab.fused_adam.emulation import kept
from processes import run
from sessions import cell

from conftest import measured

CPU = torch.device("cpu")


@pytest.fixture
def emulated():
    with OPTIMIZERS.restored():
        emulation.emulate()
        yield


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-11), ("uint8", 2**-4)])
def test_stored_moment_is_rounded_once(dtype: str, error: float):
    x = torch.linspace(1.0, 2.0, 1001) * 1e-6
    found = kept(x, getattr(torch, dtype))
    assert 0 < float((found / x - 1).abs().max()) <= error * (1 + 1e-5)
    assert torch.equal(kept(torch.zeros(3), getattr(torch, dtype)), torch.zeros(3))


def test_fused_adam_in_fp32_is_adamw():
    torch.manual_seed(0)
    terms: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8}
    ours, theirs = (torch.ones(8, 8) for _ in range(2))
    options: dict[str, Any] = {f"exp_avg{end}_dtype": torch.float16 for end in ("", "_sq")}
    made = [
        emulation.FusedAdam([{"params": [ours], "weight_decay": 0.1}], **terms, **options),
        torch.optim.AdamW([theirs], weight_decay=0.1, **terms),
    ]
    for _ in range(3):
        ours.grad = theirs.grad = torch.randn(8, 8)
        for each in made:
            each.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


class Late(emulation.FusedAdam):
    """Bias correction sees a step long after the first."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = 9999
        super().step()


class Coupled(emulation.FusedAdam):
    """Weight decay is added to the gradient (``adam_w_mode`` 0)."""

    def step(self, closure=None):
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = (p.grad + group["weight_decay"] * self._weight(p)).to(p.dtype)
            group["weight_decay"] = 0.0
        super().step()
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay


def undivided(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return weight.bfloat16(), torch.zeros_like(weight, dtype=torch.int16)


ALL = {"FP32 masters", "16-bit remainders", "FP16 masters"}
MASTER_FAULTS: dict[str, tuple[str, Any, set[str]]] = {
    "none": ("NEWTON", None, set()),
    "bias correction of a late step": ("FusedAdam", Late, ALL),
    "coupled weight decay": ("FusedAdam", Coupled, ALL),
    "remainder dropped": ("divided", undivided, {"16-bit remainders"}),
    "moments in FP32 after all": ("kept", lambda x, dtype: x, ALL),
}


@pytest.mark.parametrize("name", emulation.NAMES)
@pytest.mark.parametrize("fault", MASTER_FAULTS)
def test_fault_of_kept_masters_is_red_there(name: str, fault: str, emulated, monkeypatch):
    attribute, changed, wrong = MASTER_FAULTS[fault]
    monkeypatch.setattr(emulation, attribute, changed, raising=False)
    found = masters.held(name, SCHEDULE, CPU)
    assert {h.where.partition(",")[0] for h in found if not h.inside} == wrong
    assert len(found) == 7


@pytest.mark.slow
@pytest.mark.parametrize("name", emulation.NAMES)
def test_emulated_steps_pass_the_canary(name: str, emulated):
    found = canary_verdict(canary_of(None, "te-current", f"micro-{name}"), "te-current", f"micro-{name}")
    assert found.status == "pass", found.message()


@pytest.mark.slow
def test_checkpoint_keeps_the_state(session, emulated):
    spec = session.subject("bf16", "native")
    found = measured(checkpoint.measure(replace(spec, schedule=replace(spec.schedule, optimizer="te-adam-fp8"))))
    assert {v for k, v in found.items() if "changed" in k or "difference" in k} == {0.0}


def test_command_holds_all_kinds(emulated, capsys, monkeypatch):
    assert cli.main(["masters", "--emulated"]) == 0
    assert capsys.readouterr().out.count("master sqnr") == 9
    monkeypatch.setattr(emulation, "divided", undivided)
    assert cli.main(["masters", "--emulated"]) == 1
    assert "fail" in capsys.readouterr().out


def test_command_asks_for_a_gpu_or_the_emulation(capsys):
    assert cli.main(["masters"]) == 2
    assert "give --emulated" in capsys.readouterr().err


def test_plugin_lets_a_gate_begin_without_a_gpu():
    words = "suites/convergence", "--model=pico-te-adam-bf16", "--recipe=bf16", "-n", "0", "-p", "no:randomly"
    assert "pico-te-adam-bf16: optimizer te-adam-bf16 " in run("pytest", *words).stderr
    assert "no golden of pico-te-adam-bf16" in run("pytest", "-p", emulation.__name__, *words).stderr


@pytest.mark.slow
def test_records_say_that_steps_were_emulated(session, emulated):
    found = session.trajectory(cell("bf16", "native", "pico-te-adam-bf16"), 0)
    assert found.optimizer == "te-adam-bf16, emulated"
