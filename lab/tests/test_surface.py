"""What the lab takes from fp8-parity, and how its commands are found."""

import ast
import tomllib
from pathlib import Path

import fp8parity
import pytest
from fp8parity import cli
from processes import ROOT
from test_shipped import installed as installed
from test_shipped import without_suites

LAB = Path(__file__).parents[1]


def imported(tree: ast.AST) -> set[str]:
    """Return the modules of fp8parity that a module imports, and public names as "fp8parity"."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fp8parity":
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [name for name in whole if name in fp8parity.OPEN_MODULES or node.module == "fp8parity"]
            found |= set(modules) if len(modules) == len(whole) else {node.module or ""}
    return found


def test_lab_uses_the_public_surface_only():
    trees = {p: ast.parse(p.read_text()) for p in sorted((LAB / "fp8parity_lab").rglob("*.py"))}
    names = {f"fp8parity.{name}" for name in fp8parity.__all__}
    other = {p.name: found for p, tree in trees.items() if (found := imported(tree) - fp8parity.OPEN_MODULES - names)}
    assert other == {}
    used = set().union(*map(imported, trees.values())) - names
    assert sorted(fp8parity.OPEN_MODULES - used) == [], "open, and not used"


def test_core_names_all_commands_of_the_lab():
    points = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]["entry-points"][cli.ADDED]
    assert set(points) == set(cli.LAB) == set(cli.added())


@pytest.mark.slow
def test_reading_records_needs_no_torch_and_no_pytest(installed, tmp_path):
    micro, blocks = (str(ROOT / f"golden/records/{name}.zip") for name in ("micro-xeon", "h100-blocks"))
    commands = [["history", "add", "one", micro], ["history", "page", "public"], ["power"], ["split", "--from", blocks]]
    assert without_suites(installed, tmp_path, commands) == ("0 0 0 0", [])
