"""The cells of suites/throughput whose models only the timers know: they are collected, and they do not ask for a training preset."""

from __future__ import annotations

import datetime

import pytest
from fp8parity.gate import selection
from fp8parity.judging.policy import known_failures
from fp8parity.recipes.registry import RECIPES, gemm_cells
from fp8parity.records.cell import Execution
from fp8parity.records.check_names import CHECKS
from fp8parity.workload import shapes
from fp8parity.workload.presets import presets


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
