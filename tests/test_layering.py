"""The plan of the house: which room may import which, what imports no torch, vendors or pytest; public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import fp8parity
import pytest
from fp8parity.cli import COMMANDS

PACKAGE = Path(__file__).parents[1] / "fixtures" / "fp8parity"

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
    "judging": "records runs shipped did_you_mean",
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


@cache
def imports(path: Path) -> set[str]:
    """Names that a file imports, in functions and for types too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or ""} | {f"{node.module}.{a.name}" for a in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    inside = {name.split(".")[1] for name in imports(path) if name.startswith("fp8parity.")}
    return inside - {room_of(path)}


MODULES = sorted(PACKAGE.rglob("*.py"))
WITHOUT_TORCH = [p for p in MODULES if (free := TORCH_FREE.get(room_of(p), set())) is None or p.stem in free]


def test_every_room_is_in_the_plan():
    assert {room_of(p) for p in MODULES} == set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_plan(path):
    assert rooms_imported(path) <= set(ROOMS[room_of(path)].split())


def rooms_named(code: str) -> set[str]:
    """The rooms of modules that strings name, also the beginning of one: an import by its name is an arrow, too."""
    texts = (n.value for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {found[1] for text in texts if (found := re.match(r"fp8parity\.(\w+)[\w.]*$", text))} & ROOMS.keys()


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) != "__init__"], ids=name_of)
def test_strings_name_no_module_above(path):
    assert rooms_named(path.read_text()) <= {room_of(path), *ROOMS[room_of(path)].split()}


def test_a_module_named_by_a_string_is_seen():
    assert rooms_named('found = f"fp8parity.checks.{name}"; other = "fp8parity.suites"') == {"checks"}


def modules_imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, in functions and for types too."""
    known, found = set(map(name_of, MODULES)), set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{a.name}" for a in node.names)
            found |= {name if name in known else node.module for name in names}
    return found & known


def circle(graph: dict[str, set[str]]) -> list[str]:
    """A circle of a graph of imports, or none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_the_plan_has_no_circle():
    """Rooms can be put in a row in which each one imports only those before it."""
    assert circle({room: set(may.split()) for room, may in ROOMS.items()}) == []


def test_modules_have_no_circle():
    """A type that two modules need stands below both, also if one imports it only in a function or for types."""
    assert circle({name_of(p): modules_imported(p) for p in MODULES}) == []


@pytest.mark.parametrize(
    "code",
    [
        "from fp8parity.report import summary",
        "if TYPE_CHECKING:\n    from fp8parity.report.summary import Report",
        "def f():\n    from fp8parity.report.summary import Report",
    ],
)
def test_a_planted_circle_is_seen(code, tmp_path):
    planted = tmp_path / "planted.py"
    planted.write_text(code)
    graph = {name_of(p): modules_imported(p) for p in MODULES}
    graph["fp8parity.report.sentence"] |= modules_imported(planted)
    assert {"fp8parity.report.sentence", "fp8parity.report.summary"} <= set(circle(graph))


def test_every_permission_is_used():
    used: dict[str, set[str]] = {}
    for path in MODULES:
        used.setdefault(room_of(path), set()).update(rooms_imported(path))
    assert {room: sorted(used[room]) for room in ROOMS} == {room: sorted(may.split()) for room, may in ROOMS.items()}


def test_modules_right_of_the_records_import_no_torch():
    """All in one process: the first one that imports torch is named."""
    names = [name_of(p) for p in WITHOUT_TORCH]
    code = f"import importlib, sys\nfor n in {names}:\n    importlib.import_module(n)\n    assert 'torch' not in sys.modules, n"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ["records", "runs", "judging", "report"])
def test_nothing_right_of_the_records_names_torch(room):
    assert not [p for p in MODULES if room_of(p) == room and any(n.split(".")[0] == "torch" for n in imports(p))]


@pytest.mark.parametrize(
    ("vendor", "doors"),
    [
        ("transformer_engine", "te te_fused te_attention te_gemms te_recipes te_switches"),
        ("torchao", "torchao torchao_gemms torchao_prototype"),
    ],
)
def test_only_the_adapters_import_a_vendor(vendor, doors):
    found = {p for p in MODULES if any(n == vendor or n.startswith((f"{vendor}.", f"{vendor}_")) for n in imports(p))}
    assert {p.stem for p in found} == set(doors.split())
    assert {p.parent.name for p in found} == {"adapters"}


def test_only_the_gate_uses_pytest():
    users = {str(p.relative_to(PACKAGE)) for p in MODULES if any(n.split(".")[0] == "pytest" for n in imports(p))}
    names = "context entry fixture results manifest options plugin reporter __init__ selection workers"
    assert users == {f"gate/{name}.py" for name in names.split()}


def test_suites_are_short_and_only_claim():
    for path in (PACKAGE.parents[1] / "suites").rglob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path
        assert imports(path) <= {"pytest"}, path


def builds_commands(tree: ast.AST) -> bool:
    """Whether code quotes the words of a command, begins a list with a program, or puts a value behind a command's name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("join", "quote") and ast.unparse(node.value) == "shlex":
            return True
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) in ("'fp8parity'", "'pytest'"):
            return True
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
            if re.search(rf"\b(pytest|fp8parity ({'|'.join(COMMANDS)})) [^.;,:)]*{{}}", text):
                return True
    return False


def test_only_one_module_builds_commands():
    """A command that is built elsewhere misses what a wheel, a clone or a golden needs."""
    assert {p.name for p in MODULES if builds_commands(ast.parse(p.read_text()))} == {"shipped.py"}


@pytest.mark.parametrize(
    "code", ["shlex.join(words)", "['pytest', x]", "f'repeat: fp8parity run numerics --model {x}'"]
)
def test_a_command_built_elsewhere_is_seen(code):
    assert builds_commands(ast.parse(code))


MAX_STATEMENTS = 23_721
"""Statements of the library. A change may lower it; raising it needs a sentence in the changelog. By room: python -m fp8parity_lab.size."""


def test_library_does_not_grow():
    trees = (ast.parse(p.read_text()) for p in MODULES)
    assert sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree)) <= MAX_STATEMENTS


MAX_GOLDEN = 15_000_000
"""Bytes of the goldens with their record sets. A new set takes the place of an older one of its kind."""


def test_goldens_do_not_grow():
    assert sum(p.stat().st_size for p in (Path(__file__).parents[1] / "golden").rglob("*") if p.is_file()) <= MAX_GOLDEN


def test_a_wrong_import_is_seen(tmp_path):
    """What reads imports sees those of functions, and of modules as well as of names."""
    planted = tmp_path / "planted.py"
    planted.write_text("def f():\n    from fp8parity import judging\n    import torch.nn\n")
    assert {"fp8parity.judging", "torch.nn"} <= imports(planted)


@pytest.mark.parametrize("name", fp8parity.__all__)
def test_public_name_exists(name):
    assert getattr(fp8parity, name)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nonsense"):
        _ = fp8parity.nonsense


@pytest.mark.slow
def test_import_of_the_package_needs_no_torch():
    code = "import sys, fp8parity; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
