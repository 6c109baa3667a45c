"""Runs under the name of another recipe are found by equal numbers and by their first gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.references import _moved_by as moved_by
from faults.runs import calibration
from fp8parity.judging import gradients, identity
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.references import Goldens
from fp8parity.judging.references.numbers import MeasuredNumbers
from fp8parity.judging.table import Judged, unmeasured
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import machines
from fp8parity.records.storage import load_records
from narrowed import some
from reports import RECIPES
from sessions import stored

GOLDENS, POLICY = stored()
GOLDEN = GOLDENS.loss["micro", "topics"]
RUNS = {
    recipe: sorted((r for r in calibration("micro") if r.cell.recipe == recipe and not r.variant), key=lambda r: r.seed)
    for recipe in ("bf16", *RECIPES)
}
ALIKE = {"te-block", "te-mxfp8", "ao-mxfp8", "ao-rowwise"}
"""Recipes with equal first gradients, to 5% of their gap to BF16: they differ in the geometry of scales alone."""


def start(runs: list[Trajectory]) -> list[Judged]:
    """The first step of runs of micro, judged by the rules and the golden's sound runs alone."""
    return gradients.first_step(runs, RUNS["bf16"], POLICY, MeasuredNumbers(), golden=GOLDEN)


@pytest.mark.parametrize("name", [r for r in RUNS if r != "bf16"])
def test_first_gradients_of_another_recipe_are_red(name):
    for recipe in (r for r in RUNS if r not in ("bf16", name) and not {name, r} <= ALIKE):
        runs = [
            own.model_copy(update={"first_gradients": other.first_gradients})
            for own, other in zip(RUNS[name], RUNS[recipe], strict=True)
        ]
        assert gradients.SOUND in {r.metric for r in start(runs) if r.outside}, recipe


@pytest.mark.parametrize(("factor", "status"), [(1.0, "fail"), (1.01, "drift")])
def test_first_gradients_decide_unless_bf16_left_its_golden(factor, status):
    pairs = zip(RUNS["te-current"], RUNS["te-block"], strict=True)
    runs = [own.model_copy(update={"first_gradients": other.first_gradients}) for own, other in pairs]
    goldens = Goldens({GOLDEN.key: moved_by(factor)(GOLDEN)}, numbers=GOLDENS.numbers)
    [found] = evaluate([*RUNS["bf16"], *runs], goldens, POLICY)
    assert [v.status for v in found.verdicts if not v.cell.is_control] == [status]


@pytest.mark.parametrize("recipe", [r for r in RUNS if r != "bf16"])
def test_first_gradients_of_sound_runs_are_inside(recipe):
    found = start(RUNS[recipe])
    assert not any(r.outside for r in found)
    assert sum(r.metric == gradients.SOUND and r.judges for r in found) == len(RUNS[recipe])


@pytest.mark.parametrize("change", [{"seed": 50}, {"provenance": None}], ids=str)
def test_seed_or_device_without_sound_runs_is_named(change):
    if "provenance" in change:
        change = {"provenance": RUNS["te-current"][0].provenance.model_copy(update={"capability": [10, 0]})}
    found = start([r.model_copy(update=change) for r in RUNS["te-current"]])
    gpu = RUNS["te-current"][0].provenance.device
    assert f"no numbers of {gpu} for loss parity (first gradients from sound runs); not judged" in unmeasured(found)


def test_equal_runs_of_two_vendors_are_sound_and_those_of_one_are_not():
    """te-current and ao-tensorwise of two Hugging Face models, native on an H200, are equal to the bit."""
    path = Path(__file__).parents[1] / "golden/records/h200-hf.zip"
    records = [r for r in load_records(path) if isinstance(r, Trajectory) and r.cell.model == "hf-qwen3"]
    by = {name: [r for r in records if r.cell.recipe == name] for name in ("te-current", "ao-tensorwise")}
    assert [r.loss for r in by["te-current"]] == [r.loss for r in by["ao-tensorwise"]]
    for kinds, fault in ((by["te-current"], None), (by["ao-tensorwise"], "of seed 0 equal those of ao-tensorwise")):
        runs = [r.model_copy(update={"inventory": k.inventory}) for r, k in zip(by["te-current"], kinds, strict=True)]
        (machine,) = machines([*runs, *by["ao-tensorwise"]])
        text = identity.runs_of_another(runs, machine, POLICY)
        assert (fault in some(text)) if fault else text is None
