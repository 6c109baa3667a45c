"""The command compare, verdicts that another golden folder turns, and an upgrade from end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import name_of, write_json
from processes import FIXTURES, Done, run
from two_sides import TOML, save


@pytest.fixture
def command(runs, tmp_path, monkeypatch):
    """Compares two stored sets; returns the exit status."""
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    (tmp_path / "policy.toml").write_text(TOML)

    def call(new, report) -> int:
        old, later = save(tmp_path / "old", runs()), save(tmp_path / "new", runs("2.13.0", **new))
        return main(["compare", str(old), str(later), "--golden-dir", str(tmp_path), "--report", str(report)])

    return call


CASES = pytest.mark.parametrize(
    ("new", "code"), [({}, 0), ({"recipe": 0.02}, 1), ({"seeds": 2}, 2), ({"recipe": -0.02}, 0)]
)


@CASES
def test_the_command_by_its_exit_status(command, tmp_path, capsys, new, code):
    report = tmp_path / "out" / "c.json"
    assert command(new, report) == code
    first, *rest = capsys.readouterr().out.splitlines()
    kept = json.loads(report.read_text())
    assert first == kept["sentence"]
    assert "torch 2.12.0 -> 2.13.0" in first
    assert kept["updates"] == [{"name": "torch", "old": "2.12.0", "new": "2.13.0"}]
    about = {row["name"]: (row["old"], row["new"]) for row in kept["about"]}
    assert about["set"] == (str(tmp_path / "old"), str(tmp_path / "new"))
    assert about["cells"] == ("emulated: te-current; bf16 on nano",) * 2
    assert [v.split(",")[0] for v in about["versions"]] == ["torch 2.12.0", "torch 2.13.0"]
    assert {"device", "commit", "recorded"} <= about.keys()
    assert any(line.startswith("missing: te-current-nano-emulated seed2 (in NEW)") for line in rest) == (code == 2)
    told = "this set has no manifest: what was selected is not known"
    assert [line for line in rest if line.endswith(told)] == [f"{tmp_path / side}: {told}" for side in ("old", "new")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{old}", "{folder}/no"), "no: no such file or folder"),
        (("{old}", "{old}"), "old hold the same records: one side was named twice, or NEW was never run"),
        (("{old}", "{old}", "--report", "{folder}/x.txt"), "no renderer for '.txt'; use .md or .html or .json"),
    ],
)
def test_the_command_with_bad_input(tmp_path, capsys, runs, arguments, words):
    (tmp_path / "policy.toml").write_text(TOML)
    old = save(tmp_path / "old", runs())
    given = [a.format(old=old, folder=tmp_path) for a in arguments]
    assert main(["compare", *given, "--golden-dir", str(tmp_path)]) == 2
    assert words in capsys.readouterr().err


def test_a_comparison_of_bf16_alone_says_so(tmp_path, capsys, runs):
    """No change is then no word about a recipe."""
    (tmp_path / "policy.toml").write_text(TOML)
    sides = [[r for r in runs(version) if r.cell.is_control] for version in ("2.12.0", "2.13.0")]
    old, new = (save(tmp_path / name, side) for name, side in zip(("old", "new"), sides, strict=True))
    assert main(["compare", str(old), str(new), "--golden-dir", str(tmp_path)]) == 0
    assert "\nonly BF16 was compared, and no recipe\n" in capsys.readouterr().out


Make = Callable[..., Trajectory]
Turned = Callable[..., list[str]]
MARGIN = '[[loss]]\nmargin = {}\nseeds = [3]\nwhy = "a made-up row"\n'
FAR = (0.0101, 0.0104, 0.0097)
NEAR = (0.0001, 0.0004, -0.0003)
ONE = "te-current-nano-emulated loss parity: fail -> pass (the gap to BF16 is outside"


@pytest.fixture
def put(trajectory: Make, tmp_path: Path) -> Callable[..., str]:
    """Stores BF16 and a recipe of three seeds as a set, and returns its path."""

    def of(
        name: str, gaps: tuple[float, ...] = (), shift: float = 0.0, session: str = "s", **provenance: object
    ) -> str:
        own = {"provenance": trajectory().provenance.model_copy(update=provenance), "session": session}
        runs = [trajectory("bf16", s, shift, **own) for s in range(3)]
        for r in runs + [trajectory("te-current", s, gap, **own) for s, gap in enumerate(gaps)]:
            write_json(tmp_path / name / name_of(r), r)
        return str(tmp_path / name)

    return of


@pytest.fixture
def turned(trajectory: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Turned:
    """What ``judge --against`` says of sets when the margin becomes another one: how many verdicts turn, and which."""
    old, new = tmp_path / "old", tmp_path / "new"

    def said(*sets: str, margin: float = 0.005) -> list[str]:
        for folder, own in ((old, 0.005), (new, margin)):
            folder.mkdir(exist_ok=True)
            (folder / "policy.toml").write_text(MARGIN.format(own))
            write_json(folder / "loss" / "nano-topics.json", from_runs([trajectory(seed=s) for s in range(3)], []))
        assert main(["judge", *sets, "--golden-dir", str(new), "--against", str(old)]) in (0, 1)
        lines = capsys.readouterr().out.splitlines()
        [at] = [i for i, line in enumerate(lines) if " verdicts differ from " in line]
        return [lines[at].split()[0], *lines[at + 1 :]]

    return said


def test_a_turn_on_one_machine_is_told_with_its_name(put: Callable[..., str], turned: Turned):
    """The other machine passes before and after, and hides nothing, in whichever order the sets are named."""
    sets = put("a", FAR, device="H100"), put("b", NEAR, device="H200")
    for given in (sets, sets[::-1]):
        count, line = turned(*given, margin=0.02)
        assert count == "1"
        assert line.startswith(f"  H100: {ONE}")


def test_sessions_of_a_machine_that_differ_are_no_turn(put: Callable[..., str], turned: Turned):
    """BF16 gets one verdict a session: it moved from its golden in the second one."""
    assert turned(put("a"), put("b", shift=0.05, session="t")) == ["0"]


BROKEN = """
import pytest
from fp8parity.numerics import scaling

PATCH, sound = pytest.MonkeyPatch(), scaling.SCALE_RULES["te-fp32"]
PATCH.setitem(scaling.SCALE_RULES, "te-fp32", lambda amax, fmt: 2 * sound(amax, fmt))  # saturates what was largest

def pytest_unconfigure(config):
    PATCH.undo()
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
        return run("pytest", *cells, *terms, *arguments, path=(FIXTURES, str(folder)))

    report = ("--parity-report", str(folder / "report.md"))
    return Sides(folder, record("old"), record("new", "-p", "broken_release", *report))


@pytest.mark.slow
def test_broken_release_is_refused_and_named(sides):
    assert (sides.old.returncode, sides.new.returncode) == (0, 1), sides.new.stdout
    first = (sides.folder / "report.md").read_text().split("\n\n")[1]
    assert first.startswith("**Refuse: te-current emulated on one linear fails (gemm:"), first


@pytest.mark.slow
def test_comparison_names_the_recipe_and_not_the_framework(sides):
    old, new, report = (str(sides.folder / name) for name in ("old", "new", "compare.json"))
    done = run("fp8parity", "compare", old, new, "--report", report)
    assert done.returncode == 1, done.stdout
    first = done.stdout.splitlines()[0]
    assert "te-current-tiny-emulated gemm" in first and "ramework" not in first and "te-block" not in first
    changes = json.loads(Path(report).read_text())["changes"]
    effects = {c["cell"]["recipe"]: c["effect"] for c in changes}
    assert effects == {"te-current": "regression", "te-block": "none", "bf16": "none"}
