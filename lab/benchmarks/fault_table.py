"""Write the table of planted faults.

    python lab/benchmarks/fault_table.py --write lab/docs/evidence/faults.md

``tests/faults`` holds the faults as data, and ``tests/test_faults.py`` plants each of them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "fixtures")]

from faults.catalogue import CATALOGUE  # noqa: E402 - the path of the tests comes first
from faults.fault import Kind  # noqa: E402 - the same
from fp8parity.records import files  # noqa: E402 - the same

HEAD = """# Planted faults

`python lab/benchmarks/fault_table.py --write lab/docs/evidence/faults.md` writes this page. `tests/faults` holds the \
faults as data.
`tests/test_faults.py` plants each of them: the check must fail, name the place, and blame the right side.

{faults} faults, {findings} findings. A row counts the findings of one check in one kind of fault, and names the first \
three.

| kind | check | findings | for example |
|---|---|---|---|
"""


def page() -> str:
    """Return the page in Markdown: one row for each kind of fault and check."""
    found: dict[tuple[Kind, str], list[str]] = {}
    for fault in CATALOGUE:
        for finding in fault.seen:
            found.setdefault((fault.kind, finding.look.check), []).append(fault.name)
    head = HEAD.format(faults=len(CATALOGUE), findings=sum(map(len, found.values())))
    order = list(Kind)
    rows = [
        f"| {kind} | `{check}` | {len(names)} | {'; '.join(list(dict.fromkeys(names))[:3])} |\n"
        for (kind, check), names in sorted(found.items(), key=lambda item: (order.index(item[0][0]), -len(item[1])))
    ]
    return head + "".join(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there (default: print it)")
    target = parser.parse_args().write
    files.write(target, page()) if target else print(page())
