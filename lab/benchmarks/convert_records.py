"""Convert record sets of the unreleased schemas 1 and 2 into schema 3, so that sets of older commits can be judged.

python lab/benchmarks/convert_records.py OLD.zip NEW.zip
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from fp8parity.records.cell import SCHEMA
from fp8parity.records.storage import checked, checksum, load_records, texts

SPELLING = {
    "uantis": "uantiz",
    r"ptimis(?=[eai])": "ptimiz",
    "ormalis": "ormaliz",
    r"(?<=[Cc])olour": "olor",
    "eighbour": "eighbor",
}
"""British spelling of words in keys, texts and file names -> the spelling of schema 3."""


def respell(text: str) -> str:
    """Replace the British spelling of a text."""
    for old, new in SPELLING.items():
        text = re.sub(old, new, text)
    return text


def convert(data: dict[str, Any]) -> dict[str, Any]:
    """Convert a record. Raises ``ValueError`` for another schema. A manifest keeps its version."""
    version = data.get("schema_version")
    if data["kind"] != "manifest":
        if version not in (1, 2):
            raise ValueError(f"schema {version}; only records of the schemas 1 and 2 are converted")
        data |= {"schema_version": SCHEMA}
        if version == 1 and data["kind"] in ("trajectory", "measurements"):
            data |= {"partial": True}
    return json.loads(respell(json.dumps(data)))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("old", type=Path, help="a folder or .zip file")
    made.add_argument("new", type=Path, help="a .zip file that does not exist yet")
    args = made.parse_args()
    with zipfile.ZipFile(args.new, "x", zipfile.ZIP_DEFLATED) as archive:
        for where, text in [pair for manifests in (True, False) for pair in texts(args.old, manifests=manifests)]:
            data = convert(checked(text, where))
            archive.writestr(respell(where.name), json.dumps({**data, "checksum": checksum(data)}, indent=1))
    print(f"{args.new}: {len(load_records(args.new))} records")


if __name__ == "__main__":
    main()
