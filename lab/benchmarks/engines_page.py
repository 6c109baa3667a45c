"""Measure the tables of lab/docs/engines.md and write them into the page.

    python lab/benchmarks/engines_page.py --records .parity/engines --write lab/docs/engines.md

It runs ``fp8parity engines matrix`` and ``invariance`` on the CPU, and ``engine_faults.py``. What the folder of records
has is not computed again. A table is between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from engine_faults import default_plan, measure, table
from fp8parity.records import files
from fp8parity_lab.cli.engines import COMMAND

BLOCK = re.compile(r"(?<=<!-- measured: )([\w -]+)( -->\n).*?(?=\n<!-- end -->)", re.S)


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, default=Path(".parity/engines"))
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    matrix, invariance = (reported(action, args.records) for action in ("matrix", "invariance"))
    made = {
        "facts": facts(matrix),
        "matrix": section(matrix, "Trainer x engine"),
        "variants": section(matrix, "What of the engine differs"),
        "invariance": section(invariance, "Batch invariance"),
        "faults": table(list(measure(default_plan(args.records)))),
    }
    files.write(args.write, BLOCK.sub(lambda m: f"{m[1]}{m[2]}{made[m[1]]}", args.write.read_text()))


if __name__ == "__main__":
    main()
