"""Plain words: no dialect in the library and the pages, short first docstring lines, one class for each name.

``tests/words_baseline.toml`` holds how many offenses a file may still have. Counts may only shrink:
``python tests/test_words.py`` writes the file again.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from pathlib import Path

from documents import PAGES, ROOT, rows

LIBRARY = sorted((ROOT / "fixtures/fp8parity").rglob("*.py"))
BASELINE = ROOT / "tests/words_baseline.toml"
MAX_FIRST_LINE = 80
DIALECT = re.compile(
    r"\b(beside|of which|nobody|stands|speaks|tells|told|lost|gone|absent|makes good|yardstick|riddle|turned"
    r"|stayed|moved|looks|learnt|neighbour|colour|behaviour|quantis\w*|optimis\w*)\b",
    re.I,
)
POLICY_WORDS = set(
    re.findall(
        r"\w+",
        "alike always base better bf16 by complete context drop equal error gemm high learned least loss low max mean memory metric min "
        "name norm number place replicas sd seeds shown slack speed step threshold trend unit value where why",
    )
)
"""Words that keys of the policy use besides those of the glossary."""


def offenses(path: Path) -> int:
    """Count dialect words in docstrings, strings and names of a module (or in a page), and long first docstring lines."""
    text = path.read_text()
    if path.suffix == ".md":
        return len(DIALECT.findall(text))
    count = 0
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            count += len(DIALECT.findall(node.value))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            count += len(DIALECT.findall(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", node.name)))
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            count += len(first) > MAX_FIRST_LINE or " whose " in first
    return count


def found() -> dict[str, int]:
    counts = {str(path.relative_to(ROOT)): offenses(path) for path in (*LIBRARY, *PAGES)}
    return {name: count for name, count in counts.items() if count}


def twice() -> list[str]:
    """Return the names of classes that the library defines more than once."""
    trees = [ast.parse(path.read_text()) for path in LIBRARY]
    names = Counter(n.name for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    return sorted(name for name, count in names.items() if count > 1)


def allowed() -> dict[str, dict[str, int]]:
    return tomllib.loads(BASELINE.read_text())


def test_words_of_a_file_do_not_get_worse():
    known = allowed()["offenses"]
    assert {name: count for name, count in found().items() if count > known.get(name, 0)} == {}


def test_no_class_name_is_new_in_a_second_place():
    assert set(twice()) <= set(allowed()["twice"])


def test_policy_keys_use_words_of_the_glossary():
    glossary = {w for cells in rows("glossary.md") for w in re.findall(r"\w+", cells[0].lower())}
    policy = tomllib.loads((ROOT / "golden/policy.toml").read_text())
    keys = {key for kind, entries in policy.items() for entry in entries for key in (kind, *entry)}
    assert {w for key in keys for w in key.split("_")} - glossary - POLICY_WORDS == set()


if __name__ == "__main__":
    lines = [f'"{name}" = {count}\n' for name, count in sorted(found().items())]
    classes = [f"{name} = 2\n" for name in twice()]
    BASELINE.write_text("".join(["[offenses]\n", *lines, "\n[twice]\n", *classes]))
