"""A small project with one file of every kind that the commands read, and commands that read them. For tests of bad input."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import timings
import trajectories
from fp8parity.judging.references import pooling
from fp8parity.judging.references.loss import Golden, from_runs
from fp8parity.judging.references.noise import add_noise
from fp8parity.judging.references.timed import SpeedGolden
from fp8parity.records import manifest
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Manifest, Selected
from fp8parity.records.schema import AnyRecord, Measurement, Measurements, Trajectory
from fp8parity.records.storage import checksum, name_of, write_json

SEEDS = range(3)
TIME = "2026-11-22T00:00:00+00:00"


def toml(table: str, **row: object) -> str:
    """Return a row of a table as TOML."""
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in row.items())
    return f"[[{table}]]\n{''.join(lines)}\n"


WHY = "made up for bad input"
POLICY = (
    toml("loss", margin=0.01, seeds=[2, 3], why=WHY)
    + toml("golden", least_seeds=2, why=WHY)
    + toml("speed", band=0.05, memory_band=0.05, why=WHY)
    + toml("metric", name="fprop sqnr", better="higher", unit="dB", shown=True)
    + toml("rule", check="gemm", metric="fprop sqnr", low=20.0, high=60.0, why=WHY)
    + toml("trend", check="gemm", metric="fprop sqnr", slack=2.0, why=WHY)
    + toml("band", check="canary", metric="fprop sqnr", band=1.0, why=WHY)
)
LINK, END = "https://example.org/1", "2999-01-01"
KNOWN = toml("known", recipe="te-block", check="gemm", status="fail", says="outside their bounds", link=LINK, why=WHY)
KNOWN = KNOWN.replace("why", f"expires = {END}\nwhy")  # a date has no quotes
NUMBERS = """check,metric,where,model,recipe,execution,value,source
canary,fprop sqnr,x,tiny,te-current,emulated,30,abc
"""
SECONDS = """test,model,recipe,execution,ranks,seconds
test_loss_parity,nano,te-current,emulated,1,2.5
test_modes,tiny,te-current,emulated,1,10
"""
SOURCES = """source,records,device,packages,sha256
abc,set.zip,d,torch 0,abcdef
"""
COMMANDS = {
    "judge": ["judge", "records", "--report", "out.md", "--report", "out.html"],
    "judge zip": ["judge", "set.zip", "--against", "golden"],
    "merge": ["merge", "merged.zip", "records", "set.zip"],
    "compare": ["compare", "set.zip", "records", "--report", "out.md"],
    "bounds": ["golden", "bounds", "records"],
    "calibrate": ["calibrate", "--from", "records"],
    "plan": ["plan", "records"],
    "golden diff": ["golden", "diff", "HEAD", "--records", "records"],
}
"""Commands by name. They run in the folder of the project and read every file of it."""


def records() -> list[AnyRecord]:
    """BF16, a replica, a recipe and a planted fault of three seeds; a check with and without the fault; step times."""
    fault = "outputs shifted"
    entropies = {"unigram": 6.0, "bigram": 3.0, "first_gradients": {"w": 1.0}, "hyperparameters": {"lr": (0.1, 0.1)}}
    runs = [
        trajectories.made(recipe, s, gap + 1e-5 * s, variant=variant, **entropies)
        for s in SEEDS
        for recipe, gap, variant in (
            ("bf16", 0.0, ""),
            ("bf16", 1e-6, "replica1"),
            ("te-current", 1e-4, ""),
            ("bf16", 0.1, fault),
        )
    ]
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED)
    values = [Measurement(metric="fprop sqnr", where=w, value=30.0) for w in ("x", "y")]
    gemm = Measurements(
        check="gemm", cell=cell, values=values, notes=["a note"], provenance=trajectories.PROVENANCE, session="s"
    )
    canary = gemm.model_copy(update={"check": "canary", "notes": []})
    checks = [gemm, canary, canary.model_copy(update={"variant": fault})]
    return [*runs, *checks, timings.made(provenance=trajectories.PROVENANCE)]


def make(folder: Path) -> Path:
    """Write the project, commit it, and return its folder."""
    return shutil.copytree(_written(), folder, dirs_exist_ok=True)


@cache
def _written() -> Path:
    """Write the project once for all tests of this process."""
    folder = Path(tempfile.mkdtemp(prefix="fp8parity-inputs-"))
    atexit.register(shutil.rmtree, folder)
    made = records()
    for record in made:
        write_json(folder / "records" / name_of(record), record)
    test = Selected(cell="te-current-tiny-native", test="test_gemm_sqnr", outcome="skipped", reason="no GPU")
    session = Manifest(
        session="s", options=["-k", "gemm"], started=TIME, ended=TIME, status="ok", provenance=trajectories.PROVENANCE, seconds=60.0,
        selected=[test],
    )  # fmt: skip
    manifest.write(folder / "records", session)
    again = folder / "again"
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for record in made:
            archive.write(
                write_json(again / name_of(record), record.model_copy(update={"session": "again"})), name_of(record)
            )
    shutil.rmtree(again)
    golden = folder / "golden"
    runs = [r for r in made if isinstance(r, Trajectory)]
    controls = [r for r in runs if r.cell.is_control and r.variant in ("", "replica1")]
    others = [(r, c) for r in runs for c in controls if not r.cell.is_control and not c.variant and r.seed == c.seed]
    stored = add_noise(from_runs(controls, [Measurement(metric="fprop sqnr", where="w", value=30.0)]), others, window=4)
    write_json(golden / Golden.model_construct(model="nano", corpus="topics").path, stored)
    speeds = pooling.updated(None, [timings.made(provenance=trajectories.PROVENANCE)])
    write_json(golden / SpeedGolden.model_construct(gpu=speeds.gpu, model=speeds.model).path, speeds)
    texts = {"policy.toml": POLICY, "known_failures.toml": KNOWN}
    texts |= {"numerics/shared.csv": NUMBERS, "numerics/sources.csv": SOURCES, "seconds/cpu/d.csv": SECONDS}
    for name, text in texts.items():
        (golden / name).parent.mkdir(exist_ok=True, parents=True)
        (golden / name).write_text(text)
    for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm x"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder


@contextmanager
def replaced(path: Path, content: bytes) -> Iterator[None]:
    """Write other content into a file for the time of the block. For a member of a .zip file the path goes on behind ``.zip``."""
    archive = next((p for p in path.parents if p.suffix == ".zip"), None)
    target = archive or path
    before = target.read_bytes()
    try:
        if archive is None:
            path.write_bytes(content)
        else:
            with zipfile.ZipFile(archive, "w") as out:
                out.writestr(str(path.relative_to(archive)), content)
        yield
    finally:
        target.write_bytes(before)


def sealed(data: dict[str, Any]) -> bytes:
    """The content of a record or golden as JSON, with the checksum that belongs to it."""
    body = {k: v for k, v in data.items() if k != "checksum"}
    return json.dumps({**body, "checksum": checksum(body)}).encode()
