"""A cell of several ranks is another cell: no golden and no number of one rank judges it, and its records have their own names."""

from __future__ import annotations

import pytest
from fp8parity import checks
from fp8parity.judging.evaluate import evaluate
from fp8parity.judging.verdict import NumericsDetail
from fp8parity.records.cell import Cell
from fp8parity.records.check_names import CHECKS
from fp8parity.records.schema import Measurement, Measurements
from fp8parity.records.storage import name_of
from fp8parity.report.commands import command
from fp8parity.report.evidence import Evidence
from sessions import cell, stored, verdict
from verdicts import verdict as made


def of(ranks: int, recipe: str = "te-current", execution: str = "native", model: str = "tiny") -> Cell:
    return cell(recipe, execution, model).model_copy(update={"ranks": ranks})


def test_ids_name_the_ranks_and_a_control_has_as_many():
    assert [of(n).id for n in (1, 2)] == ["te-current-tiny-native", "te-current-tiny-native-x2"]
    assert (of(2).label, of(2).control.id, of(2).control.label) == (
        "te-current native x2",
        "bf16-tiny-native-x2",
        "bf16 x2",
    )
    assert (
        Cell.model_validate_json(cell("bf16", "native").model_dump_json(exclude={"ranks"})).ranks == 1
    )  # an older record


@pytest.mark.parametrize("ranks", [2, 8])
def test_losses_of_several_ranks_have_no_golden(trajectory, ranks):
    runs = [trajectory(recipe, seed, cell=of(ranks, recipe)) for recipe in ("bf16", "te-current") for seed in range(3)]
    found = [v for e in evaluate(runs, *stored()) for v in e.verdicts]
    words = f"the goldens are of 1 rank, and this is a cell of {ranks}"
    assert [(v.cell.ranks, v.status, v.headline) for v in found] == [(ranks, "stale", words)] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_measured_numbers_are_of_one_rank(trajectory, ranks):
    own, rows = stored()
    numbers = own.numbers
    place = Measurement(metric="fprop sqnr", where="gaussian", value=0.0)
    band = rows.band_for(of(1), "gemm", place)
    known = band and numbers.find(of(1), "gemm", place, band, "cpu")
    assert band and known
    assert numbers.find(of(ranks), "gemm", place, band, "cpu") == (known if ranks == 1 else None)
    values = [Measurement(metric="fprop sqnr", where="gaussian", value=known.value)]
    record = Measurements(cell=of(ranks), check="gemm", values=values, provenance=trajectory().provenance, session="s")
    said = verdict(record.model_copy(update={"partial": True})).detail  # of this schema one number is enough
    assert isinstance(said, NumericsDetail)
    assert said.unmeasured == ([] if ranks == 1 else ["no numbers for gemm (fprop sqnr @ gaussian); rules only"])
    assert ("x2" in name_of(record)) == (ranks == 2)


def test_command_of_a_cell_names_its_suite_and_its_ranks():
    said = [command([made("pass", cell=of(n), check="sharded")], Evidence()) for n in (1, 2)]
    assert said == [
        f"pytest suites/distributed --recipe te-current --model tiny --execution native{k}" for k in ("", " -k x2")
    ]


@pytest.mark.parametrize("name", [info.name for info in CHECKS.values() if info.module])
def test_each_check_has_the_name_of_its_entry(name):
    check = checks.get(name)
    assert (check.name, check.suite, check.ranked) == (name, CHECKS[name].suite, CHECKS[name].ranked)
    assert (check.suite == "suites/distributed") == check.ranked
