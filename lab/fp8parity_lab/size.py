"""Print the statements of the core by room and ability, and fail if tests/test_layering.py has another number.

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
ABILITIES = {
    "timing": (
        *("timing/*", "judging/gemm_sums.py", "judging/gemms.py", "judging/speed.py", "judging/timed.py"),
        *("judging/worth.py", "judging/compare/times.py", "judging/references/timed.py", "records/gemms.py"),
        *("records/times.py", "report/tim*.py", "report/sections/gemms.py", "report/sections/speed.py"),
        *("cli/blocks.py", "cli/gemm.py", "recipes/adapters/*_gemms.py"),
    ),
    "two logs": ("judging/pair/*", "runs/*", "report/pair.py", "cli/pairs.py"),
    "several ranks": ("distributed/*",),
    "checks of a release": (
        *(f"checks/{name}.py" for name in ("attention", "autotune", "dispatch", "experts", "large", "modes")),
        *(f"checks/{name}.py" for name in ("options", "state", "twins")),
        "recipes/adapters/te_attention.py",
    ),
    "models of Hugging Face and your own": ("workload/hf_*.py", "workload/own.py", "gate/own_models.py"),
    "trainers": ("trainers/*", "judging/trainer_calibration.py", "cli/calibrate.py"),
    "optimizers": ("training/optimizers.py", "workload/optimizers.py"),
}
"""What a gate of one model and one recipe does without, by the files that serve it alone."""


def statements(path: Path) -> int:
    """Count the statements of a file."""
    return sum(isinstance(n, ast.stmt) for n in ast.walk(ast.parse(path.read_text())))


def rooms(package: Path) -> Counter[str]:
    """Count the statements of each room: a folder of the package, or a module of its own."""
    found = Counter[str]()
    for path in package.rglob("*.py"):
        found[path.relative_to(package).parts[0].removesuffix(".py")] += statements(path)
    return found


def abilities(package: Path) -> Counter[str]:
    """Count the statements of each ability."""
    of = {name: {p for glob in globs for p in package.glob(glob)} for name, globs in ABILITIES.items()}
    return Counter({name: sum(statements(p) for p in files if p.suffix == ".py") for name, files in of.items()})


def main(root: Path = ROOT) -> int:
    """Print the counts of a clone, and return 1 if the number that it states is another."""
    package = root / "fixtures" / "fp8parity"
    found, able = rooms(package), abilities(package)
    lines = [*found.most_common(), ("in total", found.total())]
    if able.total():
        lines += [*able.most_common(), ("in these abilities", able.total())]
    for name, count in lines:
        print(f"{count:7,}  {name}")
    [stated] = STATED.findall((root / "tests" / "test_layering.py").read_text())
    if int(stated) == found.total():
        return 0
    print(f"tests/test_layering.py states {int(stated):,}: MAX_STATEMENTS = {found.total():_}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
