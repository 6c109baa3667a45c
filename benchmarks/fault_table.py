"""The table of all planted faults: python benchmarks/fault_table.py --write docs/faults.md

It runs tests/test_faults.py, so that every line was found by its check just now, and needs about three minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "fixtures")]

from faults.catalogue import CATALOGUE  # noqa: E402 - the path of the tests comes first
from faults.fault import Fault, Finding, Kind  # noqa: E402 - the same
from fp8parity.records import atomic  # noqa: E402 - the same

Seconds = Mapping[tuple[str, str, str], float]
HEAD = """# Planted faults

`python benchmarks/fault_table.py --write docs/faults.md` writes this page. `tests/faults` holds the faults as data, and
`tests/test_faults.py` plants each of them. The check must fire, name the place, and put the blame on the right side. A number after
the name of a project is an issue or a pull request there.

Process seconds are those of one look at one fault, with one thread, on {cpu}: the check and its verdict. What the check
compares with was made before. Looks at recorded or made-up runs train nothing, so their times are those of judging alone.
"""


def measured() -> Seconds:
    """Run the catalogue. Return process seconds by fault, check and cell. Exits if a fault was not found."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "faults.jsonl"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:randomly",
            "-p",
            "no:cacheprovider",
            "tests/test_faults.py",
            "-k",
            "named",
        ]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"FP8PARITY_FAULTS": str(file)}, check=False)
        if done.returncode:
            sys.exit("a fault was not found; nothing is written")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {(r["name"], r["check"], r["where"]): r["seconds"] for r in rows}


def cpu() -> str:
    """The name of this machine's CPU."""
    path = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", path.read_text()) if path.exists() else None
    return found[1] if found else platform.processor()


def line(fault: Fault, finding: Finding, seconds: Seconds) -> str:
    words = finding.words if isinstance(finding.words, str) else finding.words[0]
    said = f"`{finding.place}`" if finding.place else f'"{words}"'
    check = f"{finding.look.check} ({finding.look.where})"
    time = f"{seconds[fault.name, finding.look.check, finding.look.where]:.2f}"
    return " | ".join(["", fault.name, fault.source, check, said, finding.status, str(finding.blame), time, ""]).strip()


def page(seconds: Seconds) -> str:
    """The page in Markdown, one table for each kind of fault."""
    counts = Counter(f.kind for f in CATALOGUE)
    findings = sum(len(f.seen) for f in CATALOGUE)
    parts = ", ".join(f"{counts[k]} of kind {k}" for k in Kind)
    text = [
        HEAD.format(cpu=cpu()),
        f"{len(CATALOGUE)} faults, {findings} findings, {sum(seconds.values()):.0f} s in all: {parts}.\n",
    ]
    for kind in Kind:
        text += [
            f"## {kind.capitalize()}\n",
            "| fault | source | check (cell) | names | status | blames | seconds |",
            "|---|---|---|---|---|---|---|",
        ]
        text += [line(f, finding, seconds) for f in CATALOGUE if f.kind == kind for finding in f.seen]
        text += [""]
    return "\n".join(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there (default: print it)")
    target = parser.parse_args().write
    made = page(measured())
    atomic.write(target, made) if target else print(made)
