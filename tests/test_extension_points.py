"""What others add from outside: an adapter, a recipe, a check, each by a hook and without editing the library."""

from __future__ import annotations

import pytest
from fp8parity.recipes import registry
from fp8parity.recipes.adapters import emulated
from fp8parity.registry import Registry
from processes import run

CONFTEST = '''
from dataclasses import replace

from fp8parity.checks.protocol import Check
from fp8parity.numerics.spec import LinearSpec, Operand
from fp8parity.recipes import Recipe
from fp8parity.recipes.adapters import emulated
from fp8parity.records.schema import Measurement

pytest_plugins = ("fp8parity.gate.plugin",)


class Mine:
    """A vendor's emulation, here made of the project's own."""

    OPTIONS = ()
    converted = 0

    def convert(self, model, recipe, execution, seed):
        Mine.converted += 1
        return emulated.convert(model, recipe, execution, seed)

    default_spec = staticmethod(emulated.default_spec)
    quantize = staticmethod(emulated.quantize)
    fp8_attention = staticmethod(emulated.fp8_attention)
    reset = staticmethod(emulated.reset)


def measure(spec):
    import torch

    spec.linear(torch.zeros(16, 16, dtype=torch.bfloat16), tokens=16)
    return [Measurement(metric="conversions", where="mine", value=float(Mine.converted))], []


def pytest_fp8parity_adapters():
    return {"mine": Mine()}


def pytest_fp8parity_recipes():
    row = Operand("e4m3", (1, 0), "ao-pow2")
    return [Recipe("my-recipe", LinearSpec(row, row, row, row, row, row), source="ours", adapter="mine", vendor_emulation=True)]


def pytest_fp8parity_checks():
    return [Check("converted", measure)]
'''
TEST = """
def test_converted(recipe_cell, parity):
    parity.numerics("converted", recipe_cell)
"""
RULE = """
[[rule]]
check = "converted"
metric = "conversions"
low = {low}
high = {low}
why = "the adapter from outside converted the one linear layer"
"""


@pytest.mark.parametrize(("low", "code"), [(1, 0), (0, 1)])
def test_hooks_add_adapter_recipe_and_check(tmp_path, low, code):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_converted.py").write_text(TEST)
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "policy.toml").write_text(RULE.format(low=low))
    done = run("pytest", "-q", "--recipe", "my-recipe", cwd=tmp_path)
    assert done.returncode == code, done.stdout
    assert ("Accept: the only check is green." in done.stdout) == (code == 0)


def test_module_of_functions_is_an_adapter():
    assert registry.adapter("emulated") is emulated
    for name in ("OPTIONS", "convert", "default_spec", "quantize", "fp8_attention", "reset"):
        assert hasattr(registry.adapter("torchao"), name)


def test_registry_suggests_names_and_is_restored():
    known = Registry("fruit", {"apple": 1})
    with known.restored():
        known.update(pear=2)
        assert known.find("pear") == 2
    assert known == {"apple": 1}
    with pytest.raises(ValueError, match="unknown fruit 'aple': did you mean apple"):
        known.find("aple")
