"""The plan of the house: which room may import which, what imports no torch or vendors; public names and sizes."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import fp8parity
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fixtures" / "fp8parity"

ROOMS = {
    "did_you_mean": "",
    "registry": "did_you_mean",
    "shipped": "",
    "records": "did_you_mean registry",
    "numerics": "",
    "workload": "numerics records did_you_mean registry shipped",
    "recipes": "workload numerics records did_you_mean registry",
    "training": "recipes workload numerics records",
    "trainers": "training records runs did_you_mean",
    "timing": "training recipes workload numerics records",
    "checks": "training recipes workload numerics records",
    "distributed": "checks training recipes workload numerics records",
    "runner": "trainers timing distributed checks training recipes workload records registry",
    "runs": "records did_you_mean",
    "judging": "records runs shipped did_you_mean registry",
    "planning": "judging records",
    "report": "judging records shipped",
    "gate": "shipped report planning judging runner trainers checks training recipes workload records did_you_mean",
    "cli": "gate shipped report planning judging runs runner trainers timing training recipes workload numerics records did_you_mean",
    "__main__": "cli",
    "__init__": "",
}
"""Room (a folder, or a module of the package itself) -> the rooms that it may import, in functions too. Left of the records is torch
and no judgment; right of them is judgment and no torch; only gate and cli see both sides."""

TORCH_FREE: dict[str, set[str] | None] = {
    "records": None,
    "runs": None,
    "judging": None,
    "planning": None,
    "report": None,
    "gate": None,
    "did_you_mean": None,
    "registry": None,
    "shipped": None,
    "cli": None,
    "numerics": {"spec"},
    "workload": {"config", "dimensions", "hf_config", "optimizers", "schedule", "presets", "shapes"},
    "trainers": {"__init__", "spec"},
    "recipes": {"__init__", "adapter", "catalogue", "conversion", "recipe", "registry"},
}
"""Room -> its modules that are importable without torch (None: all of them)."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = sorted(PACKAGE.rglob("*.py"))
KNOWN = {name_of(path) for path in MODULES}
WITHOUT_TORCH = [p for p in MODULES if (free := TORCH_FREE.get(room_of(p), set())) is None or p.stem in free]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    """Names that a file imports, in functions and for types too: a module, or the module that has the name."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{a.name}" for a in node.names)
            found |= {name if name in KNOWN else node.module for name in names}
    return found


def rooms_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.startswith("fp8parity.")} - {room_of(path)}


def test_rooms_import_what_the_plan_allows_and_no_more():
    used: dict[str, set[str]] = {}
    for path in MODULES:
        used.setdefault(room_of(path), set()).update(rooms_imported(path))
    assert used == {room: set(may.split()) for room, may in ROOMS.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of a graph of imports, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def graph_of_modules() -> dict[str, set[str]]:
    return {name_of(p): imports(p) & KNOWN for p in MODULES}


def test_rooms_and_modules_have_no_circle():
    """A type that two modules need stands below both, also if one imports it only in a function or for types."""
    assert circle({room: set(may.split()) for room, may in ROOMS.items()}) == []
    assert circle(graph_of_modules()) == []


def test_planted_imports_are_seen(tmp_path):
    """In a function, and of a module by its name."""
    planted, graph = PACKAGE / "report" / "planted.py", graph_of_modules()
    with pytest.MonkeyPatch.context() as patch:
        text = "def f():\n    from fp8parity.report import summary\n    import torch.nn\n"
        patch.setattr(Path, "read_text", lambda self: text)
        graph["fp8parity.report.sentence"] |= imports(planted)
        assert "torch.nn" in imports(planted)
    assert {"fp8parity.report.sentence", "fp8parity.report.summary"} <= set(circle(graph))


def test_modules_right_of_the_records_import_no_torch():
    """All in one process: the first one that imports torch is named. The package itself imports no pydantic either."""
    code = "import importlib, sys, fp8parity\nassert 'torch' not in sys.modules and 'pydantic' not in sys.modules\n"
    code += f"for n in {[name_of(p) for p in WITHOUT_TORCH]}:\n    importlib.import_module(n)\n    assert 'torch' not in sys.modules, n"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_only_the_adapters_import_a_vendor():
    vendor = re.compile(r"(transformer_engine|torchao)(\.|_|$)")
    assert {p.parent.name for p in MODULES if any(map(vendor.match, imports(p)))} == {"adapters"}


MAX_STATEMENTS = 23_571
"""Statements of the library. A change may lower it; raising it needs a sentence in the changelog. By room: python -m fp8parity_lab.size."""
MAX_GOLDEN = 15_000_000
"""Bytes of the goldens with their record sets. A new set takes the place of an older one of its kind."""


def test_library_and_goldens_do_not_grow():
    assert sum(isinstance(node, ast.stmt) for p in MODULES for node in ast.walk(tree(p))) <= MAX_STATEMENTS
    assert sum(p.stat().st_size for p in (ROOT / "golden").rglob("*") if p.is_file()) <= MAX_GOLDEN


def test_class_names_are_unique_and_docstrings_begin_with_a_line():
    """``Rule`` is of recipes and of the policy."""
    nodes = [node for p in MODULES for node in ast.walk(tree(p))]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert {name for name, count in names.items() if count > 1} <= {"Rule"}
    described = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)]
    firsts = [(ast.get_docstring(node) or "").partition("\n")[0] for node in described]
    assert [line for line in firsts if len(line) > 80] == []


def test_public_names_exist_and_others_do_not():
    assert all(getattr(fp8parity, name) for name in fp8parity.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fp8parity.nonsense
