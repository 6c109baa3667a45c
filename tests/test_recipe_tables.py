"""The tables of docs/recipes.md say what the catalogue and the presets hold."""

from __future__ import annotations

import re

import pytest
from doc_tables import rows
from fp8parity.recipes.catalogue import CATALOGUE
from fp8parity.workload.models import MODELS
from fp8parity.workload.presets import presets

ROWS = {cells[0].strip("`"): cells[1:] for cells in rows("recipes.md") if len(cells) in (6, 7)}
BASES = [r for r in CATALOGUE if not r.base and r.linear.quantized]


@pytest.mark.parametrize("recipe", BASES, ids=lambda r: r.name)
def test_a_recipe_has_its_vendors_name_and_its_formats(recipe):
    vendor, inputs, gradients, _, _ = ROWS[recipe.name]
    assert vendor == f"`{recipe.vendor}`"
    spec = recipe.linear
    formats = {"e4m3": "E4M3", "e5m2": "E5M2", "e2m1": "E2M1", "bf16": "BF16"}
    assert {formats[o.format] for o in (spec.fprop_x, spec.fprop_w, spec.dgrad_w)} == {inputs}
    assert set(re.findall(r"E\dM\d|BF16", gradients)) == {formats[o.format] for o in (spec.dgrad_dy, spec.wgrad_dy)}


@pytest.mark.parametrize("name", ["micro", "tiny", "mini", "small", "base", "1b"])
def test_a_model_has_its_sizes_and_its_schedule(name):
    model, schedule = next(m for m in MODELS if m.name == name), presets()[name].schedule
    tokens = schedule.rows * schedule.length * schedule.accumulation
    numbers = [[int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", cell)] for cell in ROWS[name]]
    assert numbers == [
        [model.parameters], [model.dim], [model.layers], [model.heads, model.kv_heads], [model.hidden], [schedule.steps, tokens]
    ]  # fmt: skip


def test_no_recipe_is_left_out():
    assert {r.name for r in BASES} <= ROWS.keys() and len(BASES) == 9
