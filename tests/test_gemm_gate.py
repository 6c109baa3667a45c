"""The cells of suites/throughput whose models only the timers know: they are collected, and they do not ask for a training preset."""

from __future__ import annotations

import datetime
from types import SimpleNamespace
from typing import Any

import pytest
from fp8parity.gate import selection
from fp8parity.judging.policy import known_failures
from fp8parity.recipes import registry
from fp8parity.recipes.registry import RECIPES, gemm_cells
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.check_names import CHECKS
from fp8parity.training.hardware import Hardware
from fp8parity.workload import shapes
from fp8parity.workload.presets import presets

H100 = Hardware("h100", "cuda:0", (9, 0))
ITEM: Any = SimpleNamespace(get_closest_marker=lambda name: None)
CONTEXT: Any = SimpleNamespace(hardware=H100, execution=None, models={})


def test_a_variant_on_a_published_model_needs_no_preset(monkeypatch):
    """A rule may leave nothing to convert. Only a training preset can tell, and llama3-8b is none."""
    monkeypatch.setattr(registry, "package_skip_reason", lambda native: None)
    variant = next(r.name for r in RECIPES.values() if r.rules and r.adapter == "te")
    cell = Cell(model="llama3-8b", recipe=variant, execution=Execution.NATIVE)
    assert selection.item_skip_reason(ITEM, "timed_cell", cell, CONTEXT) is None


def test_gemms_are_never_gated_on_a_cpu():
    cpu: Any = SimpleNamespace(hardware=Hardware("cpu", "cpu", None), execution=None, models={})
    cell = Cell(model="llama3-8b", recipe="te-current", execution=Execution.NATIVE)
    assert selection.item_skip_reason(ITEM, "gemm_cell", cell, cpu) == "needs a GPU of sm_90; this machine has none"


def test_each_native_recipe_has_a_gemm_cell_and_no_variant_has():
    found = gemm_cells(shapes.known())
    assert {c.recipe for c in found} == {
        r.name for r in RECIPES.values() if r.native and not r.base and r.linear.quantized
    }
    assert {c.model for c in found} == set(shapes.known())
    assert {c.execution for c in found} == {Execution.NATIVE}


@pytest.mark.parametrize(
    ("check", "model"),
    [("throughput", "1b"), ("block throughput", "llama3-8b"), ("GEMM throughput", "llama3-8b"), ("sharded", "micro")],
)
def test_known_failure_of_a_timed_or_sharded_check_is_valid(tmp_path, check, model):
    entry = f"""
[[known]]
recipe = "te-current"
model = "{model}"
execution = "native"
check = "{check}"
status = "fail"
says = "too slow"
link = "https://example.org/issues/7"
expires = 2026-03-02
why = "the kernels of this version are slow"
"""
    (tmp_path / known_failures.FILE).write_text(entry)
    cells = list(selection.known_cells(selection.suite_cells(presets())).values())
    assert known_failures.load(tmp_path, datetime.date(2026, 3, 1)).problems([], cells, CHECKS) == []
