"""Verdicts that another golden folder turns: each is compared with its own, also in sets of several machines and sessions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.judging.references.loss import from_runs
from fp8parity.records.schema import Trajectory
from fp8parity.records.storage import name_of, write_json

Make = Callable[..., Trajectory]
Turned = Callable[..., list[str]]
TOML = '[[loss]]\nmargin = {}\nseeds = [3]\nwhy = "a made-up row"\n'
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


@pytest.fixture(params=["golden diff", "judge --against"])
def turned(
    request: pytest.FixtureRequest, trajectory: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Turned:
    """What a command says of sets when the margin becomes another one: how many verdicts turn, and which."""
    old, new = tmp_path / "old" / "golden", tmp_path / "new" / "golden"

    def said(*sets: str, margin: float = 0.005) -> list[str]:
        for folder, own in ((old, 0.005), (new, margin)):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "policy.toml").write_text(TOML.format(own))
            write_json(folder / "loss" / "nano-topics.json", from_runs([trajectory(seed=s) for s in range(3)], []))
        if request.param == "golden diff":
            for command in ("init -q", "add -A", "-c user.name=t -c user.email=t@t commit -qm x --allow-empty"):
                subprocess.run(["git", *command.split()], cwd=old.parent, check=True)
            (old / "policy.toml").write_text(TOML.format(margin))
            assert main(["golden", "diff", "HEAD", "--golden-dir", str(old), "--records", *sets]) == 0
        else:
            assert main(["judge", *sets, "--golden-dir", str(new), "--against", str(old)]) in (0, 1)
        lines = capsys.readouterr().out.splitlines()
        [at] = [i for i, line in enumerate(lines) if " of the verdicts on " in line or " verdicts differ from " in line]
        return [lines[at].split()[0], *lines[at + 1 :]]

    return said


def test_machines_that_differ_are_no_turn(put: Callable[..., str], turned: Turned):
    """A recipe fails on one machine and passes on another one, before and after."""
    sets = put("a", FAR, device="H100"), put("b", NEAR, device="H200")
    assert turned(*sets) == ["0"]
    assert turned(*reversed(sets)) == ["0"]


def test_a_turn_on_one_machine_is_told_with_its_name(put: Callable[..., str], turned: Turned):
    """The other machine passes before and after, and hides nothing, in whichever order the sets are named."""
    sets = put("a", FAR, device="H100"), put("b", NEAR, device="H200")
    for given in (sets, sets[::-1]):
        count, line = turned(*given, margin=0.02)
        assert count == "1"
        assert line.startswith(f"  H100: {ONE}")


def test_a_turn_on_the_only_machine_needs_no_name(put: Callable[..., str], turned: Turned):
    count, line = turned(put("a", FAR, device="H100"), margin=0.02)
    assert count == "1"
    assert line.startswith(f"  {ONE}")


def test_sessions_of_a_machine_that_differ_are_no_turn(put: Callable[..., str], turned: Turned):
    """BF16 gets one verdict a session: it moved from its golden in the second one."""
    assert turned(put("a"), put("b", shift=0.05, session="t")) == ["0"]
