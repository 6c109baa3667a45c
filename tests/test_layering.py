"""The road has one direction: what judges and reports imports no torch, and vendors have one door each."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fixtures" / "fp8parity"
PARTS = [
    f"{folder}.{path.stem}"
    for folder in ("report", "compare")
    for path in sorted((PACKAGE / folder).glob("*.py"))
    if path.stem != "__init__"
]
RIGHT_OF_RECORD = (
    "record",
    "golden",
    "tolerances",
    "statistics",
    "judge",
    "report",
    *PARTS,
    "cli",
    "gate",
    "names",
    "compare",
    "golden_diff",
    "judge_first",
    "judge_loss",
    "judge_set",
    "judge_speed",
    "known",
    "record_set",
    "storage",
)
TORCH_FREE = (
    *RIGHT_OF_RECORD,
    "schedule",
    "recipes",
    "recipes.catalog",
    "recipes.spec",
    "cells",
    "session",
    "plugin",
    "road",
    "state",
    "hooks",
)
LEFT = {
    "run",
    "checks",
    "models",
    "corpus",
    "emulation",
    "scaling",
    "formats",
    "recipes",
    "provenance",
    "session",
    "plugin",
    "road",
    "state",
    "cells",
}


def imports(path: Path, *, top_level: bool) -> set[str]:
    """Modules that a file imports; with ``top_level`` those of its module body alone (not of functions, nor for types)."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def file_of(module: str) -> Path:
    path = PACKAGE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize("module", TORCH_FREE)
def test_imports_without_torch(module):
    code = f"import fp8parity.{module}, sys; assert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


PURE = tuple(m for m in RIGHT_OF_RECORD if m not in ("cli", "gate"))


@pytest.mark.parametrize("module", PURE)
def test_nothing_right_of_the_record_looks_back(module):
    own = {
        name.removeprefix("fp8parity.").split(".")[0] for name in imports(file_of(module), top_level=False) if name.startswith("fp8parity")
    }
    assert not own & LEFT


@pytest.mark.parametrize(
    ("vendor", "doors"), [("transformer_engine", {"te.py", "te_fused.py", "te_attention.py"}), ("torchao", {"torchao.py"})]
)
def test_only_the_adapters_import_a_vendor(vendor, doors):
    found = {
        path.name
        for path in PACKAGE.rglob("*.py")
        if any(name == vendor or name.startswith((f"{vendor}.", f"{vendor}_")) for name in imports(path, top_level=False))
    }
    assert found == doors


def test_only_the_plugin_and_its_parts_use_pytest():
    users = {p.name for p in PACKAGE.rglob("*.py") if any(n.split(".")[0] == "pytest" for n in imports(p, top_level=False))}
    assert users == {"plugin.py", "state.py", "road.py", "gate.py"}


def test_suites_are_short_and_only_claim():
    for path in (PACKAGE.parents[1] / "suites").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path
        assert imports(path, top_level=False) <= {"pytest"}, path


def test_modules_stay_small():
    long = {p.name: n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 300}
    assert not long
