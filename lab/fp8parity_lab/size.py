"""Print the statements of the core by room, and fail if tests/test_layering.py has another number.

    python -m fp8parity_lab.size

A statement is one of Python's syntax tree, so packed lines gain nothing.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATED = re.compile(r"^MAX_STATEMENTS = ([\d_]+)$", re.M)


def statements(package: Path) -> Counter[str]:
    """Count the statements of each room: a folder of the package, or a module of its own."""
    found = Counter[str]()
    for path in package.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        found[path.relative_to(package).parts[0].removesuffix(".py")] += sum(isinstance(n, ast.stmt) for n in nodes)
    return found


def main(root: Path = ROOT) -> int:
    """Print the counts of a clone, and return 1 if the number that it states is another."""
    found = statements(root / "fixtures" / "fp8parity")
    for room, count in [*found.most_common(), ("in total", found.total())]:
        print(f"{count:7,}  {room}")
    [stated] = STATED.findall((root / "tests" / "test_layering.py").read_text())
    if int(stated) == found.total():
        return 0
    print(f"tests/test_layering.py states {int(stated):,}: MAX_STATEMENTS = {found.total():_}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
