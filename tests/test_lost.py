"""What a session selected, or had to run, and did not: `judge`, `compare` and `history` say it, as the session did."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import two_sides
from fp8parity.cli import main
from fp8parity.judging.completeness import missing_shards
from fp8parity.records import manifest
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Selected, Shard
from fp8parity.records.schema import Measurement, Measurements
from two_sides import TOML, save

CELL = "ao-mxfp8-nano-emulated"
CRASHED = Selected(cell=CELL, test="test_gemm", outcome="failed")
REQUIRED = "required cell te-current-native was skipped: needs the package transformer_engine, which is not installed"


@pytest.fixture
def runs(trajectory):
    return partial(two_sides.runs, trajectory)


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
    assert missing_shards([session(shard=first), session(*selected, shard=second, session="t", status=status)]) == lines


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


def test_a_kept_run_that_lost_a_part_is_red(trajectory, session, tmp_path, capsys):
    cell = Cell(model="tiny", recipe="te-current", execution=Execution.EMULATED)
    row = Measurement(metric="fprop sqnr", where="gaussian", value=28.5)
    where = {"provenance": trajectory().provenance, "session": "s", "partial": True}
    green = Measurements.model_validate({"cell": cell, "check": "gemm", "values": [row], **where})
    whole, part = (save(tmp_path / name, [green]) for name in ("whole", "part"))
    manifest.write(part, session(CRASHED))
    (tmp_path / "policy.toml").write_text(
        f'{TOML}[[rule]]\ncheck = "gemm"\nlow = 28\nhigh = 29\nwhy = "a made-up row"\n'
    )
    kept = ["--parity-records", str(tmp_path / ".parity"), "--golden-dir", str(tmp_path)]
    for folder, code in ((whole, 0), (part, 1)):
        assert main(["history", "add", folder.name, str(folder), *kept]) == 0
        assert main(["history", "last", *kept]) == code
    lines = capsys.readouterr().out
    assert f"1 green, but the manifest of session s selected {CELL}" in " ".join(lines.split())
