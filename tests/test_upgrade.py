"""An upgrade from end to end: records of an old and of a new environment, in which a plugin has broken a recipe, are compared."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from fp8parity.records.locks import locked
from processes import FIXTURES, Done, run

pytestmark = pytest.mark.slow


BROKEN = """
from fp8parity.numerics import scaling

sound = scaling.SCALE_RULES["te-fp32"]
scaling.SCALE_RULES["te-fp32"] = lambda amax, fmt: 2 * sound(amax, fmt)  # saturates what was largest
"""


def record(folder: Path, name: str, *arguments: str) -> Done:
    cells = ("suites/numerics", "-k", "gemm", "--recipe", "te-current", "--recipe", "te-block", "--recipe", "bf16")
    terms = ("--execution", "auto", "-m", "cpu", "--parity-records", str(folder / name))
    return run("pytest", *cells, *terms, *arguments, path=(FIXTURES, str(folder)))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The folder of both record sets, and how the runs ended. Worker processes share it: the first that comes makes it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "upgrade"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "done.json").exists():
            make(folder)
    return folder, *(Done(**done) for done in json.loads((folder / "done.json").read_text()))


def make(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "broken_release.py").write_text(BROKEN)
    report = folder / "report"
    old = record(folder, "old")
    new = record(
        folder, "new", "-p", "broken_release", "--parity-report", f"{report}.md", "--parity-report", f"{report}.html"
    )
    (folder / "done.json").write_text(json.dumps([asdict(old), asdict(new)]))


def test_the_old_side_is_green_and_the_new_one_is_refused_with_its_reason(pair):
    folder, old, new = pair
    assert old.returncode == 0, old.stdout
    assert new.returncode == 1, new.stdout
    first = (folder / "report.md").read_text().split("\n\n")[1]
    assert first.startswith("**Refuse: te-current emulated on tiny fails (gemm:"), first
    assert "te-block" not in first and "bf16" not in first
    page = (folder / "report.html").read_text()
    assert "Refuse: te-current emulated on tiny fails (gemm:" in page.split("<nav")[0]


def test_the_comparison_names_the_recipe_and_not_the_framework(pair):
    folder = pair[0]
    done = run(
        "fp8parity", "compare", str(folder / "old"), str(folder / "new"), "--report", str(folder / "compare.json")
    )
    assert done.returncode == 1, done.stdout
    first = done.stdout.splitlines()[0]
    assert first.startswith("Recipe moved: te-current-tiny-emulated gemm -"), first
    assert "framework" not in first and "te-block" not in first
    moved = {
        c["cell"]["recipe"]: (c["moved"], c["effect"])
        for c in json.loads((folder / "compare.json").read_text())["changes"]
    }
    assert moved == {
        "te-current": ("recipe moved", "regression"),
        "te-block": ("unchanged", "none"),
        "bf16": ("unchanged", "none"),
    }


def test_the_way_back_is_a_gain(pair):
    folder = pair[0]
    done = run("fp8parity", "compare", str(folder / "new"), str(folder / "old"))
    assert done.returncode == 0, done.stdout
    assert ", better" in done.stdout.splitlines()[0]


def test_what_one_side_lacks_is_red(pair, tmp_path):
    folder = pair[0]
    kept = tmp_path / "new"
    kept.mkdir()
    for path in (folder / "old").glob("*.json"):
        if "te-block" not in path.name:
            (kept / path.name).write_bytes(path.read_bytes())
    done = run("fp8parity", "compare", str(folder / "old"), str(kept))
    assert done.returncode == 2, done.stdout
    assert "missing: te-block-tiny-emulated gemm (in NEW)" in done.stdout
