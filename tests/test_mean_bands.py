"""The mean gap of a noisy recipe is held to what its sound runs give: te-nvfp4 on micro."""

from __future__ import annotations

import numpy as np
import pytest
from faults.runs import calibration, in_a_recipe, judged
from fp8parity.judging.stats import MeanBand
from fp8parity.judging.tolerances import recipe_limits
from fp8parity.judging.verdict import Verdict
from fp8parity.records.schema import Trajectory
from sessions import stored

NAME = "te-nvfp4"
MEANS = {"mean loss", "mean norm"}


def edited(change) -> Verdict:
    """The verdict on three seeds. A change edits their losses and norms [seeds, steps]."""
    runs = [r for r in calibration("micro") if r.cell.recipe in ("bf16", NAME) and not r.variant]
    own = [r for r in runs if r.cell.recipe == NAME]
    loss, norm = change(*(np.array([getattr(r, k) for r in own]) for k in ("loss", "grad_norm")))
    made: list[Trajectory] = [
        r.model_copy(update={"loss": a.tolist(), "grad_norm": b.tolist()})
        for r, a, b in zip(own, loss, norm, strict=True)
    ]
    return judged([r for r in runs if r not in own] + made, NAME)


def metrics(found: Verdict) -> set[str]:
    return {f.metric for f in found.failing}


def test_sound_runs_are_green():
    found = edited(lambda loss, norm: (loss, norm))
    assert found.status == "pass", found.message()


@pytest.mark.parametrize("variant", ["replica1", "replica2"])
def test_what_changes_less_than_the_noise_is_green(variant):
    assert in_a_recipe(variant, NAME).status == "pass"


@pytest.mark.parametrize(
    "variant",
    ["learning rate high", "loss in BF16", "one output shifted"],
)
def test_a_standard_fault_in_the_recipe_alone_is_red(variant):
    found = in_a_recipe(variant, NAME)
    assert found.status == "fail"
    assert MEANS & metrics(found), found.message()


@pytest.mark.parametrize("sign", [-1, 1])
def test_norms_of_a_hidden_label_smoothing_of_1_percent_are_red(sign):
    """It changes norms by 1.0% to 1.9% and the loss by 0.1%. No single step of a seed shows that."""

    def change(loss, norm):
        norm[:, 1:] *= 1 + sign * 0.0125
        return loss, norm

    found = edited(change)
    assert (found.status, metrics(found)) == ("fail", {"mean norm", "to control: mean norm"})
    assert found.headline.startswith("the mean gap of the gradient norm is not the one that this recipe gives: ")
    assert (0, 299) in {r.steps for r in found.rows if r.outside}


@pytest.mark.parametrize("sign", [-1, 1])
def test_one_window_of_all_seeds_is_named(sign):
    def change(loss, norm):
        loss[:, 40:50] *= 1 + sign * 0.002
        return loss, norm

    found = edited(change)
    assert found.status == "fail"
    assert "steps 40 to 49: " in found.headline, found.message()


def test_too_few_seeds_give_no_band():
    goldens, rules = stored()
    cell = next(r.cell for r in calibration("micro") if r.cell.recipe == NAME)
    golden, row, thresholds = goldens.loss["micro", "topics"], rules.loss_row(cell), rules.thresholds(cell)
    noise = golden.noise_of(NAME)
    assert noise is not None and noise.seeds >= 30
    assert recipe_limits(golden, NAME, row, thresholds).mean_loss is not None
    few = noise.model_copy(update={"runs": [r for r in noise.runs if r.seed < thresholds.min_mean_seeds - 1]})
    less = golden.model_copy(update={"noise": [few]})
    assert recipe_limits(less, NAME, row, thresholds).mean_loss is None
    assert recipe_limits(golden, NAME, row.model_copy(update={"min_mean_band": None}), thresholds).mean_norm is None


def test_false_alarms_of_a_mean_band():
    """Gaussian gaps with correlated windows, of fresh bands: fewer than alpha are outside."""
    draw = np.random.default_rng(1)

    def gaps(n: int) -> np.ndarray:
        return draw.standard_normal((n, 1)) + draw.standard_normal((n, 5))

    outside = 0
    for _ in range(2000):
        band = MeanBand.of(gaps(20), window=1, alpha=0.02, stages=1, least=1e-9)
        mean = np.append(own := gaps(2).mean(0), own.mean())
        outside += bool((np.abs(mean - band.center) > band.half(2)).any())
    assert 4 <= outside <= 40
