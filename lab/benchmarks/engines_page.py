"""Measure the tables of lab/docs/engines.md and write them into the page.

    python lab/benchmarks/engines_page.py --records .parity/engines --write lab/docs/engines.md
    python lab/benchmarks/engines_page.py --records OUT --part gpu --write lab/docs/engines.md

The first runs ``fp8parity engines matrix`` and ``invariance`` on the CPU, and ``engine_faults.py``. What the folder of
records has is not computed again. The second takes the reports that ``engines_gpu.sh OUT`` made on a GPU. A table is
between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from engine_faults import default_plan, measure, table
from fp8parity.records import files
from fp8parity_lab.cli.engines import COMMAND

BLOCK = re.compile(r"(?<=<!-- measured: )([\w -]+)( -->\n).*?(?=<!-- end -->)", re.S)


def reported(action: str, records: Path) -> str:
    """Run an action on the CPU, and return its report in Markdown."""
    path = records / f"{action}.md"
    parser = argparse.ArgumentParser()
    COMMAND.add_to(parser)
    where = ["--records", str(records)] if action == "matrix" else []
    args = parser.parse_args([action, "--device", "cpu", *where, "--report", str(path)])
    if code := COMMAND.actions[action].run(args):
        sys.exit(code)
    return path.read_text()


def section(text: str, title: str) -> str:
    """Return what a report has below a heading, its tables first."""
    found = re.search(rf"^## {title}\n\n(.*?)(?=\n\n## |\Z)", text, re.S | re.M)
    assert found, title
    return found[1].strip()


def facts(text: str) -> str:
    """Return the facts of a report, which its list holds."""
    return "\n".join(line for line in text.splitlines() if line.startswith("* "))


def matrix(text: str, model: str = "") -> dict[str, str]:
    parts = {"matrix": "Trainer x engine", "variants": "What of the engine differs"}
    found = {"facts": facts(text)} | {name: section(text, title) for name, title in parts.items()}
    return {f"{name}{model}": table for name, table in found.items()}


def gpu(reports: Path) -> dict[str, str]:
    """Return the tables of a GPU, without what explains them: it is there once."""
    made = matrix((reports / "tiny.md").read_text(), " tiny") | matrix((reports / "qwen3.md").read_text(), " qwen3")
    return {name: re.sub(r"^(d is|A recipe as) .*\n*", "", text, flags=re.M).strip() for name, text in made.items()}


MAKE: dict[str, Callable[[Path], dict[str, str]]] = {
    "matrix": lambda records: matrix(reported("matrix", records)),
    "invariance": lambda records: {"invariance": section(reported("invariance", records), "Batch invariance")},
    "faults": lambda records: {"faults": table(list(measure(default_plan(records))))},
    "gpu": gpu,
}
"""What makes the tables of a part."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path(".parity/engines"))
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    parser.add_argument("--part", choices=MAKE, action="append", help="default: all but gpu")
    args = parser.parse_args()
    made: dict[str, str] = {}
    for part in args.part or [part for part in MAKE if part != "gpu"]:
        made |= MAKE[part](args.records)
    page = args.write.read_text()
    files.write(args.write, BLOCK.sub(lambda m: f"{m[1]}{m[2]}{made[m[1]]}\n" if m[1] in made else m[0], page))


if __name__ == "__main__":
    main()
