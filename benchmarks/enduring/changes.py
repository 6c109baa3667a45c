"""One change in a file of a green set or of its goldens, as data."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import inputs
from fp8parity.records.storage import MANIFEST

RUNS = "te-current-nano-emulated-topics-seed*.json"
CONTROLS = "bf16-nano-native-topics-seed?.json"
CHECKS = "te-current-tiny-emulated-topics-canary.json"
TIMES = "*training-step.json"
GOLDEN = "../golden/loss/nano-topics.json"
TABLES = ("shared.csv", "sources.csv", "modules.csv", "configurations.csv")
BAND = 1.0
"""The band of the numbers in ``inputs.POLICY``."""


@dataclass(frozen=True)
class Change:
    """What was changed: ``path`` for the line that refuses it. If the judge may be green, ``why`` is the class, ``said`` a text that it
    must print, and ``strict`` an option that must make it red. A change without a class must be seen."""

    path: Path
    why: str = ""
    said: str = ""
    strict: str = ""


Apply = Callable[[Random, Path], Change]
"""Changes something in a project and returns what."""
Edit = Callable[[dict[str, Any], Random], object]
"""Changes the content of a record, manifest or golden."""


def _one(chance: Random, folder: Path, pattern: str) -> Path:
    return chance.choice(sorted((folder / "records").glob(pattern)))


def _selected(path: Path) -> bool:
    return not any(word in path.name for word in (MANIFEST, "replica", "shifted"))


def _flipped(content: bytes, chance: Random) -> bytes:
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]


def flip(*patterns: str) -> Apply:
    def apply(chance: Random, folder: Path) -> Change:
        path = _one(chance, folder, chance.choice(patterns))
        path.write_bytes(_flipped(path.read_bytes(), chance))
        return Change(path)

    return apply


def resealed(pattern: str, edit: Edit, why: str = "", said: str = "", strict: str = "") -> Apply:
    """The content is edited and gets the checksum that belongs to it."""

    def apply(chance: Random, folder: Path) -> Change:
        path = _one(chance, folder, pattern)
        data = json.loads(path.read_text())
        edit(data, chance)
        path.write_bytes(inputs.sealed(data))
        return Change(path, why, said, strict)

    return apply


def member(pattern: str, edit: Edit | None) -> Apply:
    """The same in a member of a .zip file. Without an edit the member is deleted."""

    def apply(chance: Random, folder: Path) -> Change:
        path = folder / "merged.zip"
        with zipfile.ZipFile(path) as archive:
            content = {name: archive.read(name) for name in archive.namelist()}
        name = chance.choice(sorted(n for n in content if Path(n).match(pattern)))
        data = json.loads(content.pop(name))
        if edit:
            edit(data, chance)
            content[name] = inputs.sealed(data)
        with zipfile.ZipFile(path, "w") as archive:
            for kept, text in content.items():
                archive.writestr(kept, text)
        return Change(path)

    return apply


def flip_zip(chance: Random, folder: Path) -> Change:
    path = folder / "merged.zip"
    path.write_bytes(_flipped(path.read_bytes(), chance))
    return Change(path)


def delete_record(chance: Random, folder: Path) -> Change:
    path = chance.choice([p for p in sorted((folder / "records").glob("*.json")) if _selected(p)])
    path.unlink()
    return Change(path)


def delete_cell(chance: Random, folder: Path) -> Change:
    pattern = chance.choice((RUNS, CONTROLS, CHECKS, TIMES))
    for path in (folder / "records").glob(pattern):
        path.unlink()
    return Change(folder / "records" / pattern)


def delete(pattern: str, why: str = "", said: str = "", strict: str = "") -> Apply:
    def apply(chance: Random, folder: Path) -> Change:
        path = _one(chance, folder, pattern)
        path.unlink()
        return Change(path, why, said, strict)

    return apply


def copy_over(chance: Random, folder: Path) -> Change:
    """A record under the name of another one, which is gone."""
    names = [p for p in sorted((folder / "records").glob("*.json")) if _selected(p)]
    source, target = chance.sample(names, 2)
    target.write_bytes(source.read_bytes())
    return Change(target)


def copy_beside(chance: Random, folder: Path) -> Change:
    """A record a second time, under a name of nobody, or under its own name with a hash as ``merge`` makes it."""
    source = _one(chance, folder, chance.choice((RUNS, CONTROLS)))
    target = source.with_name(
        chance.choice([f"{source.stem}-0123abcd.json", "te-block-nano-emulated-topics-seed0.json"])
    )
    target.write_bytes(source.read_bytes())
    return Change(target)


def forged(chance: Random, folder: Path) -> Change:
    """A cell is deleted, and the manifest is written anew without it."""
    path, gone = _one(chance, folder, f"{MANIFEST}*"), chance.choice(("te-current-tiny", "te-current-base"))
    for record in (folder / "records").glob(f"{gone}*.json"):
        record.unlink()
    data = json.loads(path.read_text())
    data["selected"] = [s for s in data["selected"] if not s["cell"].startswith(gone)]
    path.write_bytes(inputs.sealed(data))
    return Change(
        path,
        "the records of a cell are deleted and the manifest is written anew without it; manifests have no signature",
    )


def table(chance: Random, folder: Path) -> Change:
    path = folder / "golden" / "numerics" / chance.choice(TABLES)
    path.write_bytes(_flipped(path.read_bytes(), chance))
    return Change(path)


def table_line(chance: Random, folder: Path) -> Change:
    path = folder / "golden" / "numerics" / chance.choice(TABLES)
    lines = path.read_text().splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    path.write_text("".join(lines))
    return Change(path)


def _put(*keys: str, value: Callable[[Any], object]) -> Edit:
    """Replace the value at these keys. A list takes a place by chance."""

    def edit(data: dict[str, Any], chance: Random) -> None:
        holder: Any = data
        for key in keys[:-1]:
            holder = holder[key] if isinstance(holder, dict) else chance.choice(holder)
        last = keys[-1]
        holder = holder if isinstance(holder, dict) else chance.choice(holder)
        holder[last] = value(holder[last])

    return edit


def _at(key: str, value: Callable[[Any], object]) -> Edit:
    """Replace one value of a list, by chance."""

    def edit(data: dict[str, Any], chance: Random) -> None:
        at = chance.randrange(len(data[key]))
        data[key][at] = value(data[key][at])

    return edit


NAMED = {"said": "records are", "strict": "--release"}
EDITS: dict[str, Apply] = {
    "resealed: a loss is NaN": resealed(RUNS, _at("loss", lambda x: "NaN")),
    "resealed: a loss is 30% off": resealed(RUNS, _at("loss", lambda x: x * 1.3)),
    "resealed: all losses are 3% off": resealed(RUNS, _put("loss", value=lambda v: [x * 1.03 for x in v])),
    "resealed: BF16's losses are 3% off": resealed(CONTROLS, _put("loss", value=lambda v: [x * 1.03 for x in v])),
    "resealed: losses are 0.001% off": resealed(
        RUNS, _put("loss", value=lambda v: [x * 1.00001 for x in v]), "a loss moved inside its band"
    ),
    "resealed: a loss is missing": resealed(RUNS, _put("loss", value=lambda v: v[:-1])),
    "resealed: another seed": resealed(RUNS, _put("seed", value=lambda s: s + 1)),
    "resealed: another recipe": resealed(RUNS, _put("cell", "recipe", value=lambda r: "te-block")),
    "resealed: another specification": resealed(RUNS, _put("spec_hash", value=lambda h: "other")),
    "resealed: other initial weights": resealed(RUNS, _put("initial_weights", value=lambda h: "other")),
    "resealed: other converted modules": resealed(RUNS, _put("inventory", value=lambda m: [*m, {**m[0], "fqn": "b"}])),
    "resealed: another learning rate": resealed(RUNS, _put("hyperparameters", value=lambda h: {"lr": [0.1, 0.2]})),
    "resealed: a commit of another code": resealed(
        RUNS,
        _put("provenance", "commit", value=lambda c: "def"),
        "records of several commits are named, and red for a release",
        **NAMED,
    ),
    "resealed: an unclean tree": resealed(
        RUNS,
        _put("provenance", "dirty", value=lambda d: True),
        "records of an unclean tree are named, and red for a release",
        **NAMED,
    ),
    "resealed: other packages": resealed(RUNS, _put("provenance", "packages", value=lambda p: {"torch": "1"})),
    "resealed: a time": resealed(RUNS, _put("seconds", value=lambda s: s * 2), "how long a run took decides nothing"),
    "resealed: a number of a check": resealed(CHECKS, _put("values", "value", value=lambda v: v * 0.9)),
    "resealed: a number of a check is NaN": resealed(CHECKS, _put("values", "value", value=lambda v: "NaN")),
    "resealed: the numbers of a check are gone": resealed(CHECKS, _put("values", value=lambda v: [])),
    "resealed: three times slower": resealed(TIMES, _put("recipe_seconds", value=lambda v: [x * 3 for x in v])),
    "resealed: a manifest of an undone test": resealed(
        f"{MANIFEST}*", _put("selected", value=lambda s: [{**x, "outcome": "not run", "records": []} for x in s])
    ),
    "resealed: a golden's tail": resealed(GOLDEN, _put("schedule", "tail", value=lambda t: -5)),
    "resealed: a golden's loss is NaN": resealed(
        GOLDEN, lambda d, c: d["seeds"][0]["loss"].__setitem__(c.randrange(12), "NaN")
    ),
    "resealed: a golden's losses are 3% off": resealed(
        GOLDEN, _put("seeds", value=lambda v: [{**s, "loss": [x * 1.03 for x in s["loss"]]} for s in v])
    ),
    "resealed: a golden of another model": resealed(GOLDEN, _put("model", value=lambda m: "tiny")),
}
CHANGES: dict[str, Apply] = {
    "bit of a record": flip("[!m]*.json"),
    "bit of a manifest": flip(f"{MANIFEST}*"),
    "bit of a golden": flip(GOLDEN, "../golden/throughput/d/base.json"),
    "bit of a table of numbers": table,
    "line of a table of numbers": table_line,
    "bit of a .zip file": flip_zip,
    "member of a .zip file is deleted": member("*seed[0-9].json", None),
    "member of a .zip file, resealed": member(RUNS, _put("loss", value=lambda v: [x * 1.03 for x in v])),
    "member of a .zip file with another seed": member(RUNS, _put("seed", value=lambda s: s + 1)),
    "record is deleted": delete_record,
    "cell is deleted": delete_cell,
    "cell is deleted, manifest is forged": forged,
    "manifest is deleted": delete(
        f"{MANIFEST}*",
        "a set without a manifest is named, and red for a release",
        "this set has no manifest",
        "--release",
    ),
    "golden is deleted": delete(GOLDEN),
    "table of numbers is deleted": delete("../golden/numerics/shared.csv"),
    "record under the name of another": copy_over,
    "record a second time": copy_beside,
    **EDITS,
}
