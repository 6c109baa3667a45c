"""Faults of FP8 in models that are not ours turn their loss verdict red, and without a fault it is green."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from faults import plants
from fp8parity.judging import loss, policy
from fp8parity.judging.policy import Policy
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.verdict import Verdict
from fp8parity.numerics.emulation import EmulatedLinear
from fp8parity.records.schema import Trajectory
from own_models import own, trained
from own_models import policy as shown_policy
from sessions import DAY
from torch import Tensor

STEPS = {"my_models": 30, "my_llama": 60, "my_vit": 20}
SEEDS = (0, 1, 2)
"""With two seeds the intervals of the GPT-2 and the Llama cross the margin on an AMD EPYC. One is enough for the faults: their first
gradient is another."""


@pytest.fixture
def judged(once, tmp_path, eager):
    """Returns the verdict on te-current with the policy of docs/your-model.md. Both tests of a model share BF16's runs."""
    (tmp_path / policy.FILE).write_text(shown_policy())
    rules: Policy = policy.load(tmp_path, DAY)

    def of(name: str, seeds: tuple[int, ...]) -> Verdict:
        model = own(name, STEPS[name])
        bf16: list[Trajectory] = once(f"own-{name}", lambda: [trained(model, seed=s) for s in SEEDS])
        golden: Golden = from_runs(bf16, [])
        runs = [trained(model, "te-current", s) for s in seeds]
        return loss.judge(runs, bf16[: len(seeds)], golden, rules, MeasuredNumbers())

    return of


def shifted(patch: pytest.MonkeyPatch) -> None:
    """Every FP8 linear gives the output of the row before."""
    real: Callable[[EmulatedLinear, Tensor], Tensor] = EmulatedLinear.forward
    patch.setattr(EmulatedLinear, "forward", lambda self, x: torch.roll(real(self, x), 1, dims=-2))


HALF = plants.decoded_by(lambda decode: decode / 2)
FAULTS = {
    "GPT-2, outputs shifted": ("my_models", shifted),
    "Llama, outputs shifted": ("my_llama", shifted),
    "ViT, every scale is half": ("my_vit", HALF),
}
"""A shift along the rows is no fault for the ViT, which takes their mean."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my_models", "my_vit"])
def test_sound_recipe_passes(name, judged):
    found = judged(name, SEEDS)
    assert found.status == "pass", found.message()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), FAULTS.values(), ids=FAULTS)
def test_fault_is_red(name, fault, monkeypatch, judged):
    """BF16 has none of the modules that the faults change."""
    fault(monkeypatch)
    found = judged(name, SEEDS[:1])
    assert found.status == "fail", found.message()


def test_golden_that_learned_too_little_is_inconclusive(tmp_path, eager):
    """Nothing is known of the entropy of such data, so the loss itself must have fallen."""
    (tmp_path / policy.FILE).write_text(shown_policy())
    model = own("my_models", 4)
    control, run = trained(model), trained(model, "te-current")
    found = loss.judge([run], [control], from_runs([control], []), policy.load(tmp_path, DAY), MeasuredNumbers())
    assert found.status == "inconclusive"
    assert re.search(
        r"BF16 learned too little to judge a recipe: its loss fell from 4\.\d+ to \d\.\d+ nats, .*; 25% is",
        found.headline,
    ), found.headline
