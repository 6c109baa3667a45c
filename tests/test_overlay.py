"""A golden folder of one's own that adds to the shipped goldens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp8parity.judging import policy, references
from fp8parity.judging.references.numbers import MeasuredNumbers, NumberKey
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.storage import write_json
from sessions import DAY, stored

EXTENDS = '[[extends]]\ngoldens = "shipped"\n'
OWN = '[[loss]]\nmodel = "mine"\nmargin = 0.02\nseeds = [2, 3]\nwhy = "a model of my own"\n'
HEADER = "check,metric,where,model,recipe,execution,value,source\n"
SOURCES = "source,records,device,packages,sha256\nabc,mine.zip,my GPU,torch 9,abcdef\n"


def cell(model: str) -> Cell:
    return Cell(model=model, recipe="te-current", execution=Execution.NATIVE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / policy.FILE).write_text(EXTENDS + OWN)
    return tmp_path


def test_own_rows_follow_the_shipped_ones(folder):
    mine, shipped = policy.load(folder, DAY), stored()[1]
    assert mine.loss_row(cell("mine")).margin == 0.02
    assert mine.loss_row(cell("tiny")) == shipped.loss_row(cell("tiny"))
    assert (mine.rule, mine.band) == (shipped.rule, shipped.band)
    assert (
        mine.known is not None and shipped.known is not None and str(mine.known.entries) == str(shipped.known.entries)
    )
    assert mine.claims == shipped.claims


def test_an_own_file_replaces_the_shipped_one(folder):
    (folder / "known_failures.toml").write_text("")
    known = policy.load(folder, DAY).known
    assert known is not None and known.entries == ()


def test_own_goldens_stand_beside_the_shipped_ones(folder):
    golden = stored()[0].loss["micro", "topics"]
    write_json(folder / "loss" / "mine-topics.json", golden.model_copy(update={"model": "mine"}))
    found = references.load(folder)
    assert found.loss.keys() == stored()[0].loss.keys() | {("mine", "topics")}
    assert found.throughput == stored()[0].throughput


def test_an_own_number_wins_over_a_shipped_one(folder):
    (folder / "numerics").mkdir()
    (folder / "numerics" / "sources.csv").write_text(SOURCES)
    (folder / "numerics" / "shared.csv").write_text(f"{HEADER}gemm,fprop sqnr,gaussian,tiny,te-current,native,20,abc\n")
    key = NumberKey("gemm", "fprop sqnr", "gaussian", "tiny", "te-current", Execution.NATIVE)
    found, shipped = references.load(folder).numbers, stored()[0].numbers

    def value(numbers: MeasuredNumbers) -> float:
        return numbers.tables["shared"][key].value

    assert value(found) == 20
    assert value(shipped) == pytest.approx(28.5, abs=0.6)
    assert len(found.tables["shared"]) == len(shipped.tables["shared"])
    assert found.inventories == shipped.inventories


def test_without_the_line_a_folder_stands_alone(folder):
    (folder / policy.FILE).write_text(OWN)
    assert policy.load(folder, DAY).rule == () and references.load(folder).loss == {}
    with pytest.raises(ValueError, match=r"no \[\[loss\]\] row selects te-current-tiny-native"):
        policy.load(folder, DAY).loss_row(cell("tiny"))


def test_a_folder_without_a_policy_is_told_what_to_write(tmp_path):
    path, adds = tmp_path / policy.FILE, '[[extends]] with goldens = "shipped"'
    says = f"{path}: cannot be read: No such file or directory. To add to the shipped goldens, it needs {adds}"
    with pytest.raises(ValueError, match=f"^{re.escape(says)}$"):
        policy.load(tmp_path, DAY)
