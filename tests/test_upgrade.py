"""An upgrade from end to end: compare records of an old and of a new environment, in which a plugin breaks a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import FIXTURES, TIMEOUT, Done, run, started

pytestmark = pytest.mark.slow

BROKEN = """
from fp8parity.numerics import scaling

sound = scaling.SCALE_RULES["te-fp32"]
scaling.SCALE_RULES["te-fp32"] = lambda amax, fmt: 2 * sound(amax, fmt)  # saturates what was largest
"""


class Sides(NamedTuple):
    """The folder of both record sets, and how the runs ended."""

    folder: Path
    old: Done
    new: Done


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> Sides:
    folder = tmp_path_factory.mktemp("upgrade")
    (folder / "broken_release.py").write_text(BROKEN)
    cells = ("suites/numerics", "-k", "gemm", "--recipe", "te-current", "--recipe", "te-block", "--recipe", "bf16")

    def record(name: str, *arguments: str) -> Done:
        terms = ("--execution", "auto", "-m", "cpu", "--parity-records", str(folder / name))
        # The plugin changes the library, so it needs a process of its own.
        with started("pytest", *cells, *terms, *arguments, path=(FIXTURES, str(folder))) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        return Done(process.returncode, out, err, seconds=0.0)

    report = ("--parity-report", str(folder / "report.md"))
    return Sides(folder, record("old"), record("new", "-p", "broken_release", *report))


def test_broken_release_is_refused_and_named(sides):
    assert (sides.old.returncode, sides.new.returncode) == (0, 1), sides.new.stdout
    first = (sides.folder / "report.md").read_text().split("\n\n")[1]
    assert first.startswith("**Refuse: te-current emulated on tiny fails (gemm:"), first


def test_comparison_names_the_recipe_and_not_the_framework(sides):
    old, new, report = (str(sides.folder / name) for name in ("old", "new", "compare.json"))
    done = run("fp8parity", "compare", old, new, "--report", report)
    assert done.returncode == 1, done.stdout
    first = done.stdout.splitlines()[0]
    assert "te-current-tiny-emulated gemm" in first and "ramework" not in first and "te-block" not in first
    changes = json.loads(Path(report).read_text())["changes"]
    effects = {c["cell"]["recipe"]: c["effect"] for c in changes}
    assert effects == {"te-current": "regression", "te-block": "none", "bf16": "none"}


def test_way_back_is_a_gain(sides):
    done = run("fp8parity", "compare", str(sides.folder / "new"), str(sides.folder / "old"))
    assert done.returncode == 0, done.stdout
