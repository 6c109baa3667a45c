"""A cell of several ranks is another cell: no golden and no number of one rank judges it, and its records have their own names."""

from __future__ import annotations

import pytest
from fp8parity import checks
from fp8parity.records.cell import Cell
from fp8parity.records.check_names import CHECKS
from fp8parity.report.summary import Evidence, command
from sessions import cell
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
