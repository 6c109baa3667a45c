"""Import paths and names of version 0.1's documentation lead to where things are now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import processes
import pytest
from fp8parity.old_paths import MOVED

FIXTURES = str(Path(__file__).parents[1] / "fixtures")

DOCUMENTED = """
from fp8parity.corpus import TokenStream, from_texts
from fp8parity.models import ModelConfig
from fp8parity.recipes import RECIPES, Recipe
from fp8parity.recipes.spec import LinearSpec, Operand
from fp8parity.schedule import Schedule
from fp8parity.session import Preset
from fp8parity.checks import Result, Subject
from fp8parity.checks.gemm import one_pass
from fp8parity.operands import FAMILIES, draw
from fp8parity.record import Measurement
from fp8parity.scaling import SCALE_RULES
from fp8parity.inductor import barriers
"""
"""The imports that docs/extend.md and README.md of the first layout showed."""


def run(code: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *flags, "-c", code], env={"PYTHONPATH": FIXTURES}, capture_output=True, text=True)


@pytest.mark.slow
def test_every_documented_import_works():
    done = run(DOCUMENTED + "print(Preset.__module__, Subject.__name__, Operand('e4m3'))")
    assert done.stdout == "fp8parity.workload.presets RunSpec e4m3 tensor none\n", done.stderr


def test_old_and_new_path_are_one_module():
    code = "import fp8parity.record as old, fp8parity.records.schema as new; assert old is new; print(new.__spec__.name, new.__name__)"
    assert run(code).stdout == "fp8parity.records.schema fp8parity.records.schema\n"
    assert run("import fp8parity.records.schema as new, fp8parity.record as old; assert old is new").returncode == 0


def test_an_old_path_warns():
    done = run("import fp8parity.schedule", "-W", "error::DeprecationWarning")
    assert "DeprecationWarning: fp8parity.schedule is fp8parity.workload.schedule now" in done.stderr


def test_an_unknown_path_is_still_an_error():
    assert "No module named 'fp8parity.nonsense'" in run("import fp8parity.nonsense").stderr


@pytest.mark.parametrize("new", MOVED.values())
def test_every_new_path_exists(new):
    assert (Path(FIXTURES) / new.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize("plugin", ["fp8parity.plugin", "fp8parity.gate.plugin"])
def test_either_name_of_the_plugin_and_of_the_fixture(tmp_path, plugin):
    (tmp_path / "conftest.py").write_text(f'pytest_plugins = ("{plugin}",)\n')
    (tmp_path / "test_names.py").write_text("def test_names(road, parity):\n    assert road is parity\n")
    done = processes.run("pytest", "-q", "test_names.py", cwd=tmp_path)
    assert "1 passed" in done.stdout, done.stdout
