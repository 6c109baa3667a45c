"""States of late training: what each changes, what it keeps, and the table of forks."""

from __future__ import annotations

import late_states
import pytest
import torch
from fp8parity.numerics import scaling
from fp8parity.numerics.formats import FORMATS
from fp8parity.workload import models
from fp8parity.workload.models import cross_entropy
from fp8parity.workload.presets import presets
from late_states import RUNS, STATES, Row
from sessions import on_cpu

CONFIG = presets()["pico"].model
IDS = torch.arange(32)[None]


def weights() -> dict[str, torch.Tensor]:
    return {n: p.detach().float().clone() for n, p in models.build(CONFIG, 0).named_parameters()}


def logits(of: dict[str, torch.Tensor]) -> torch.Tensor:
    model = models.build(CONFIG, 0).float()
    model.load_state_dict(of, strict=False)
    return model(IDS)


@pytest.mark.parametrize("state", STATES)
def test_a_state_keeps_the_function_or_says_that_it_does_not(state):
    before = weights()
    after = late_states.state_of(before, STATES[state], CONFIG.layers)
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    kept = torch.allclose(logits(after), logits(before), rtol=1e-3, atol=1e-3)
    assert bool(changed) == (STATES[state].change is not None)
    assert kept == (state not in ("aligned SwiGLU", "attention logits"))


def test_an_outlier_is_in_the_channel_that_linears_read():
    after = late_states.state_of(weights(), STATES["massive channel"], CONFIG.layers)
    for norm in ("attention_norm", "mlp_norm"):
        gain = after[f"layers.0.{norm}.weight"]
        assert gain[1] == 4096 and gain[0] == 1


def test_loss_of_a_state_is_changed_in_its_steps_only():
    model, batch = models.build(CONFIG, 0), (IDS, IDS.roll(-1))
    plain = cross_entropy(model, *batch)
    spiking = late_states.loss_of("spikes", cross_entropy)
    found = [spiking(model, *batch) for _ in range(late_states.STEPS)]
    with torch.no_grad():
        assert spiking(model, *batch) == plain
    assert tuple(i for i, loss in enumerate(found) if loss != plain) == late_states.SPIKES
    assert late_states.loss_of("small gradients", cross_entropy)(model, *batch) == plain * 2.0**-14
    assert late_states.loss_of("late", cross_entropy) is cross_entropy


def test_a_share_of_a_gradient_is_flushed():
    flush = late_states.flush("", torch.tensor([3.0, -0.5, 2.0, -4.0]), 0.25)
    assert flush.tolist() == [3.0, 0.0, 2.0, -4.0]
    assert late_states.saturated(torch.tensor(1.0), FORMATS["e4m3"]) == 16 * 448


def test_faults_change_what_they_name():
    history = [op.history for _, op in RUNS["history of one"][0].linear]
    assert set(history) == {1}
    formats = {name: op.format for name, op in RUNS["E4M3 gradients"][0].linear}
    assert set(formats.values()) == {"e4m3"}
    assert "saturated" not in scaling.SCALE_RULES


@pytest.mark.slow
def test_a_fork_begins_at_the_given_weights(tmp_path, eager, monkeypatch):
    monkeypatch.setattr(late_states, "STEPS", 2)
    monkeypatch.setattr(late_states, "TAIL", 1)
    monkeypatch.setattr(late_states, "WARMUP", 1)
    session = on_cpu(tmp_path)
    begin = {n: w * 1.5 for n, w in weights().items()}
    runs = [late_states.run(session, "pico", name, 0, "late", begin)[0] for name in ("bf16", "saturated scale")]
    fresh, _ = late_states.run(session, "pico", "bf16", 0, "fresh", weights())
    assert runs[0].loss[0] != fresh.loss[0]
    assert abs(runs[1].loss[0] / runs[0].loss[0] - 1) > 1e-4


def test_table_has_means_and_intervals():
    rows = [Row("late", "te-current", seed, 0.0, 1e-4 * (seed + 1), 0.02) for seed in range(3)]
    found = late_states.table(rows)
    assert "| te-current | - | +0.020 ± 0.025 | - |" in found
    assert "| te-current | - | +2.000 ± 0.000 | - |" in found
    assert late_states.table(rows[:1]).count("+0.010 |") == 1
