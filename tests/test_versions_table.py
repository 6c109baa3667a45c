"""The table of versions in docs/upgrade.md names the packages of the committed records, and no others."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

from doc_tables import rows
from processes import ROOT

RECORDS = ROOT / "golden" / "records"
ROWS = [cells for cells in rows("upgrade.md") if cells[0] in ("GPU", "CPU")]


def ran(path: Path) -> list[str]:
    """The machine and the versions of the first record of a set: a set is of one environment."""
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".json") and not n.startswith("manifest"))
        made = json.loads(archive.read(name))["provenance"]
    packages = made["packages"]
    gpu = made["capability"] is not None
    return [
        "GPU" if gpu else "CPU",
        packages["torch"],
        packages["transformer-engine"] if gpu else "-",
        packages["torchao"],
    ]


def test_the_table_holds_the_versions_of_all_records():
    found = {path.relative_to(RECORDS).as_posix(): ran(path) for path in RECORDS.rglob("*.zip")}
    assert len(found) > 60
    assert {tuple(v) for v in found.values()} == {tuple(row[:4]) for row in ROWS} and len(ROWS) == 6
    named = {row[4].strip("`"): row[:4] for row in ROWS if row[4].startswith("`")}
    assert {name: found[name] for name in named} == named and len(named) == 4
    usual = [row[:4] for row in ROWS if not row[4].startswith("`")]
    assert [name for name, of in found.items() if name not in named and of not in usual] == []
