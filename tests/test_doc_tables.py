"""The tables of the documents contain what the code and the records contain."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from documents import ROOT, rows
from fp8parity.judging import decide
from fp8parity.recipes.catalogue import CATALOGUE
from fp8parity.workload.models import MODELS
from fp8parity.workload.presets import presets

RECORDS = ROOT / "golden" / "records"
RECIPES = {cells[0].strip("`"): cells[1:] for cells in rows("recipes.md") if len(cells) in (6, 7)}
BASES = [r for r in CATALOGUE if not r.base and r.linear.quantized]
FORMATS = {"e4m3": "E4M3", "e5m2": "E5M2", "e2m1": "E2M1", "bf16": "BF16"}


@pytest.mark.parametrize("recipe", BASES, ids=lambda r: r.name)
def test_recipe_has_its_vendors_name_and_formats(recipe):
    vendor, inputs, gradients, _, _ = RECIPES[recipe.name]
    spec = recipe.linear
    assert vendor == f"`{recipe.vendor}`"
    assert {FORMATS[o.format] for o in (spec.fprop_x, spec.fprop_w, spec.dgrad_w)} == {inputs}
    found = {FORMATS[o.format] for o in (spec.dgrad_dy, spec.wgrad_dy)}
    assert set(re.findall(r"E\dM\d|BF16", gradients)) == found


def test_every_variant_has_its_row():
    named = {cells[0].strip("`") for cells in rows("recipes.md")}
    assert {r.name for r in CATALOGUE if r.linear.quantized} <= named


@pytest.mark.parametrize("name", ["micro", "tiny", "mini", "small", "base", "1b"])
def test_model_has_its_sizes_and_schedule(name):
    model, schedule = next(m for m in MODELS if m.name == name), presets()[name].schedule
    tokens = schedule.rows * schedule.length * schedule.accumulation
    numbers = [[int(n.replace(",", "")) for n in re.findall(r"[\d,]*\d", cell)] for cell in RECIPES[name]]
    sizes = [[model.parameters], [model.dim], [model.layers], [model.heads, model.kv_heads], [model.hidden]]
    assert numbers == [*sizes, [schedule.steps, tokens]]


def versions(path: Path) -> list[str]:
    """Return the machine and the versions of the first record of a set."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".json") and not n.startswith("manifest"))
        made = json.loads(archive.read(name))["provenance"]
    packages, gpu = made["packages"], made["capability"] is not None
    engine = packages["transformer-engine"] if gpu else "-"
    return ["GPU" if gpu else "CPU", packages["torch"], engine, packages["torchao"]]


def test_table_of_versions_has_those_of_all_records():
    table = [cells for cells in rows("upgrade.md") if cells[0] in ("GPU", "CPU")]
    found = {path.relative_to(RECORDS).as_posix(): versions(path) for path in RECORDS.rglob("*.zip")}
    assert {tuple(v) for v in found.values()} == {tuple(row[:4]) for row in table}
    named = {row[4].strip("`"): row[:4] for row in table if row[4].startswith("`")}
    assert {name: found[name] for name in named} == named


def test_tables_of_decisions_are_those_of_the_code():
    page = (ROOT / "docs/report.md").read_text()
    assert [rules for rules in (decide.STATUS, decide.CHANGED) if decide.markdown(rules) not in page] == []


def test_judging_needs_only_the_packages_that_the_page_names():
    [names] = re.findall(r"^pip install (filelock .*)$", (ROOT / "docs/ci.md").read_text(), re.M)
    code = (
        "import sys; before = set(sys.modules)\n"
        "from fp8parity.cli import judge, compare; from fp8parity.report import RENDERERS\n"
        "paths = {n.split('.')[0] for n, m in sys.modules.items() if n not in before and 'site-packages' in (getattr(m, '__file__', '') or '')}\n"
        "print(*paths)"
    )
    environment = {"PYTHONPATH": str(ROOT / "fixtures"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    of_others = {"_cyutility", "annotated_types", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert set(done.stdout.split()) - of_others - {"charset_normalizer"} <= set(names.split())
