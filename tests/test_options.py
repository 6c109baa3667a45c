"""Options: on the command line, in the ini file, under one heading of the help."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fp8parity.gate import options
from processes import run

SHOW = """
from fp8parity.gate.plugin import CONTEXT

def test_show(pytestconfig):
    c = pytestconfig.stash[CONTEXT]
    print("SEEN", c.golden_dir.name, c.records.name, c.recipes, c.model_globs, c.execution, c.mode, c.seeds, c.updating)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ("fp8parity.gate.plugin",)\n')
    (tmp_path / "test_show.py").write_text(SHOW)
    return tmp_path


@pytest.fixture
def show(project: Path) -> Callable[..., str]:
    """What a run with these arguments and these lines of the ini file sees."""

    def seen(*arguments: str, ini: str = "") -> str:
        (project / "pytest.ini").write_text(f"[pytest]\n{ini}")
        done = run("pytest", "-s", *arguments, cwd=project)
        found = re.search(r"SEEN (.*)", done.stdout)
        return found[1] if found else done.stderr + done.stdout

    return seen


INI = """
fp8parity_golden_dir = mine
fp8parity_records = kept
fp8parity_recipe =
    te-*
    bf16
fp8parity_model = mini
fp8parity_execution = emulated
fp8parity_mode = eager
fp8parity_seeds = 3
"""


def test_command_line_precedes_the_ini_file_and_defaults(show):
    assert show() == "golden .parity [] [] None None None False"
    assert show(ini=INI) == "mine kept ['te-*', 'bf16'] ['mini'] emulated eager (0, 1, 2) False"
    given = ("--golden-dir", "other", "--recipe", "ao-rowwise", "--execution", "auto")
    assert show(*given, ini=INI) == "other kept ['ao-rowwise'] ['mini'] None eager (0, 1, 2) False"
    assert "pytest.ini is 'fast': choose from" in show(ini="fp8parity_execution = fast\n")
    assert "--seeds takes a count (5) or a list (3,7,9), not 'many'" in show(ini="fp8parity_seeds = many\n")


def test_help_has_every_option_under_one_heading(project):
    text = run("pytest", "--help", cwd=project).stdout
    assert text.count(f"\n{options.GROUP}:\n") == 1
    section = text.split(f"\n{options.GROUP}:\n")[1].split("\n\n")[0]
    for option in options.OPTIONS:
        assert f"  {option.flag}" in section, option.flag
        assert not option.short or f"(also {option.short_name})" in re.sub(r"\s+", " ", section), option.short_name
        assert not option.ini or f"  {option.setting} (" in text, option.setting


def test_short_name_of_another_plugin_stays_its_own(project):
    """The other conftest.py comes later, and only the entry point sees both."""
    (project / "conftest.py").write_text(
        'def pytest_addoption(parser):\n    parser.addoption("--model", default="theirs")\n'
    )
    (project / "test_show.py").write_text(SHOW + '    print("THEIRS", pytestconfig.getoption("--model"))\n')
    (project / "pytest.ini").write_text("[pytest]\n")
    ours = ("-p", "fp8parity.gate.entry", "-p", "fp8parity.gate.plugin")
    done = run("pytest", "-s", *ours, "--model", "a", "--parity-model", "mini", "--recipe", "bf16", cwd=project)
    assert "SEEN golden .parity ['bf16'] ['mini']" in done.stdout, done.stdout + done.stderr
    assert "THEIRS a" in done.stdout


CONFTEST = """
from dataclasses import replace

from fp8parity import recipes
from fp8parity.recipes.adapters import emulated

pytest_plugins = ("fp8parity.gate.plugin",)


def pytest_fp8parity_adapters():
    return {"mine": emulated}


def pytest_fp8parity_recipes():
    return [replace(recipes.get("ao-rowwise"), name="my-recipe", adapter="mine")]
"""
TEST = """
def test_adapter(pytestconfig):
    from fp8parity.recipes import registry
    from fp8parity.recipes.adapters import emulated

    assert registry.adapter("mine") is emulated
"""


def test_hooks_add_adapter_and_recipe(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_adapter.py").write_text(TEST)
    done = run("pytest", "-q", "--recipe", "my-recipe", cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_missing_path_is_named_before_its_options(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "suites/numerics", "--recipe", "te-current"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    hint = "fp8parity run numerics runs it in any folder"
    assert done.returncode == 4 and f"file or directory not found: suites/numerics; {hint}\n" in done.stderr
