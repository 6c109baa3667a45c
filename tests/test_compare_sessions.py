"""Sets of several sessions: each recipe stays with its own BF16, and what a session lost is said."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import two_sides
from fp8parity.cli import main
from fp8parity.judging.completeness import defects
from fp8parity.records import manifest
from fp8parity.records.manifest import Selected, Shard
from fp8parity.records.schema import Trajectory
from fp8parity.records.sets import machines, merge
from two_sides import TOML, change, compared, save


def of(session: str, records: Sequence[Trajectory], recipe: str = "te-current") -> list[Trajectory]:
    """The records as those of a session, their recipe under another name."""
    renamed = [
        r if r.cell.is_control else r.model_copy(update={"cell": r.cell.model_copy(update={"recipe": recipe})})
        for r in records
    ]
    return [r.model_copy(update={"session": session}) for r in renamed]


def bf16(session: str, records: Sequence[Trajectory]) -> list[Trajectory]:
    return of(session, [r for r in records if r.cell.is_control])


def merged(*sessions: Sequence[Trajectory]) -> list[Trajectory]:
    found = merge((Path(f"{i}/{r.cell.id}-{r.seed}"), r) for i, records in enumerate(sessions) for r in records)
    return [r for r in found if isinstance(r, Trajectory)]


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_a_recipe_stays_with_its_own_bf16_if_that_equals_another_sessions(runs, order):
    """A and B trained the same BF16, C another one. B's was dropped as a copy of A's, and its recipe was compared with C's."""
    new = runs("2.13.0")
    sessions = [bf16("a", new), of("b", new, "te-block"), bf16("c", runs("2.13.0", control=0.02))]
    records = merged(*(sessions[i] for i in order))
    [machine] = machines(records)
    for run in (r for r in records if not r.cell.is_control):
        control = machine.control(run)
        assert control is not None and control.session == "b"
    found = compared(merged(of("o", runs(), "te-block")), records)
    assert change(found, "te-block").moved == "unchanged"
    assert merged(records, *sessions) == records


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("control", "effect", "code"), [(0.02, "regression", 1), (-0.02, "gain", 0), (0.0, "none", 0)])
def test_the_bf16_of_every_session_is_compared(runs, order, control, effect, code):
    """Only the first session of a seed was, so a session that trained BF16 alone was never looked at."""
    sessions = [of("a", runs("2.13.0")), bf16("b", runs("2.13.0", control=control))]
    found = compared(runs(), merged(*sessions[::order]))
    made = change(found, "bf16")
    assert (made.effect, found.code) == (effect, code)
    assert [c.what for c in found.changes if c.cell.is_control] == ["loss"]
    assert (made.notes == ["BF16 of session 2.12.0 EPYC in OLD and of session b in NEW"]) == (control != 0)


CELL = "ao-mxfp8-nano-emulated"
CRASHED = Selected(cell=CELL, test="test_gemm", outcome="failed")


@pytest.fixture
def session(trajectory):
    return partial(two_sides.session, trajectory)


@pytest.fixture
def sides(runs, tmp_path) -> list[str]:
    """Two sets that agree to the bit, and options with a golden folder that is read fast."""
    (tmp_path / "policy.toml").write_text(TOML)
    return [
        "--golden-dir",
        str(tmp_path),
        str(save(tmp_path / "old", runs())),
        str(save(tmp_path / "new", runs("2.13.0"))),
    ]


@pytest.mark.parametrize(
    ("status", "selected", "lines"),
    [
        ("internal error", (), ["shard 2 of 2 is missing, and shard 1 is here (split aaaaaaaa)"]),
        ("internal error", (CRASHED,), []),
        ("ok", (), []),
    ],
    ids=["died", "died later", "had nothing to do"],
)
def test_a_shard_that_died_before_it_selected_anything_is_lost(session, status, selected, lines):
    first, second = (Shard(index=i, count=2, split="a" * 64) for i in (1, 2))
    sessions = [session(shard=first), session(*selected, shard=second, session="t", status=status)]
    assert [d.text for d in defects(sessions, []) if d.kind == "shard"] == lines


@pytest.mark.parametrize("side", [0, 1])
def test_a_cell_that_only_one_manifest_knows_is_no_parity(sides, session, capsys, side):
    """It is new in NEW, or both sides lost it: no record shows it."""
    assert main(["compare", *sides]) == 0
    capsys.readouterr()
    manifest.write(Path(sides[2 + side]), session(CRASHED))
    assert main(["compare", *sides]) == 2
    words = f"missing: {CELL} test_gemm (no record holds it) (in {('OLD', 'NEW')[side]})"
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("Cannot say, because one side lacks cells.") and words in out


def test_shards_that_checked_bf16_alone_are_no_parity(sides, session, capsys):
    bf16 = Selected(cell="bf16-nano-native", test="test_gemm", outcome="passed")
    skipped = Selected(cell=CELL, test="test_gemm", outcome="skipped", reason="no GPU")
    manifest.write(Path(sides[3]), session(bf16, skipped, shard=Shard(index=1, count=1, split="a" * 64)))
    assert main(["compare", *sides]) == 2
    assert "only the BF16 control was checked and no recipe in 1 shards" in " ".join(capsys.readouterr().out.split())
