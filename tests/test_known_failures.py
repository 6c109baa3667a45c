"""golden/known_failures.toml: what turns a red verdict into a known one, and what makes an entry red itself."""

from __future__ import annotations

import datetime
import re

import pytest
from fp8parity.gate.selection import suite_cells
from fp8parity.judging.policy import known_failures
from fp8parity.judging.policy.known_failures import KnownFailures
from fp8parity.judging.verdict import Status, Verdict
from fp8parity.records import check_names
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.schema import Measurement
from fp8parity.workload.presets import presets
from fp8parity.workload.shapes import GATED_GEMMS, TIMED_BLOCKS

TODAY = datetime.date(2026, 3, 1)
MATRIX = [
    Cell(model="tiny", recipe=recipe, execution=Execution(execution))
    for recipe, execution in (("te-current", "native"), ("te-current", "emulated"), ("te-block", "native"))
]
CHECKS = ("loss parity", "gemm")
ENTRY = """
[[known]]
recipe = "te-current"
execution = "native"
check = "loss parity"
status = "fail"
says = "the gap is outside"
link = "https://example.org/issues/7"
expires = 2026-03-02
why = "the scale is applied twice"
"""


def verdict(status: Status = "fail", execution="native", check="loss parity", recipe="te-current") -> Verdict:
    cell = Cell(model="tiny", recipe=recipe, execution=Execution(execution), corpus="topics")
    return Verdict(cell=cell, check=check, status=status, headline="the gap is outside")


def entries(tmp_path, text=ENTRY, today=TODAY) -> KnownFailures:
    (tmp_path / known_failures.FILE).write_text(text)
    return known_failures.load(tmp_path, today)


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (verdict(), "known"),
        (verdict("inconclusive"), "inconclusive"),
        (verdict("error"), "error"),
        (verdict(execution="emulated"), "fail"),
        (verdict(check="gemm"), "fail"),
        (verdict(recipe="te-block"), "fail"),
        (verdict("pass"), "pass"),
    ],
)
def test_only_the_very_failure_is_known(tmp_path, given, status):
    found = entries(tmp_path).mark(given)
    assert found.status == status
    assert found.green == (status in ("known", "pass"))


def test_from_its_expiry_on_a_failure_is_red_again(tmp_path):
    late = entries(tmp_path, today=datetime.date(2026, 3, 2))
    assert late.mark(verdict()).status == "fail"
    assert late.problems([late.mark(verdict())], MATRIX, CHECKS) == [
        f"{tmp_path / known_failures.FILE}:2: expired on 2026-03-02: recipe te-current; execution native, loss parity "
        "(https://example.org/issues/7); fix it, or renew it with a reason"
    ]


@pytest.mark.parametrize(
    ("strict", "status", "red"), [(True, "pass", 1), (False, "pass", 0), (False, "fail", 1), (True, "fail", 1)]
)
def test_an_expired_entry_that_is_not_strict_lets_green_be(tmp_path, strict, status, red):
    late = entries(tmp_path, ENTRY + f"strict = {str(strict).lower()}", datetime.date(2026, 3, 2))
    assert len(late.problems([verdict(status)], MATRIX, CHECKS)) == red


@pytest.mark.parametrize(
    ("text", "verdicts", "words"),
    [
        (ENTRY, [verdict("known")], None),
        (ENTRY, [verdict("pass", execution="emulated")], None),
        (ENTRY, [], None),
        (ENTRY, [verdict("inconclusive")], None),
        (ENTRY, [verdict("pass")], "te-current-tiny-native loss parity is green now; remove the entry"),
        (ENTRY, [verdict("improved")], "is green now"),
        (ENTRY + "strict = false", [verdict("pass"), verdict("known")], None),
        (
            ENTRY.replace("te-current", "te-curent") + "strict = false",
            [],
            "recipe te-curent; execution native selects no cell of the whole",
        ),
        (
            ENTRY.replace("te-current", "te-curent"),
            [],
            "recipe te-curent; execution native selects no cell of the whole matrix",
        ),
        (ENTRY.replace("loss parity", "los parity"), [], "there is no check 'los parity'; known: loss parity, gemm"),
        (
            ENTRY.replace('"te-current"', '["te-current", "te-block"]'),
            [verdict("known"), verdict("pass", recipe="te-block")],
            "te-block-tiny-native loss parity is",
        ),
        (ENTRY + 'corpus = "text:x"', [], None),
    ],
)
def test_entries_are_strict(tmp_path, text, verdicts, words):
    found = entries(tmp_path, text).problems(verdicts, MATRIX, CHECKS)
    assert (words is None and not found) or (words is not None and len(found) == 1 and words in found[0])


def test_a_command_without_a_matrix_does_not_ask_for_cells_and_checks(tmp_path):
    text = ENTRY.replace("te-current", "te-curent").replace("loss parity", "los parity")
    assert entries(tmp_path, text).problems([], None, None) == []


def test_the_second_entry_is_named_by_its_own_line(tmp_path):
    found = entries(tmp_path, ENTRY + ENTRY.replace("te-current", "nothing")).problems([], MATRIX, CHECKS)
    assert len(found) == 1
    assert f"{known_failures.FILE}:12: " in found[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('status = "fail"', 'status = "pass"', "key status: .*pass is not a failure"),
        ('status = "fail"', 'status = "red"', "key status"),
        ('link = "https://example.org/issues/7"\n', "", "key link: Field required"),
        ("https://example.org/issues/7", "see Slack", "key link"),
        ("expires = 2026-03-02\n", "", "key expires: Field required"),
        ("2026-03-02", '"soon"', "key expires"),
        ("the scale is applied twice", "x", "key why"),
        ("check =", "chek =", "key check: Field required"),
        ('recipe = "te-current"', 'recipe = "te-*"', "key recipe: .*'te-\\*' is a pattern; list the names"),
        ("[[known]]", "[[knwon]]", "unknown table 'knwon'; known: known"),
    ],
)
def test_malformed_entries_name_file_line_and_key(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=re.escape(known_failures.FILE) + r".*" + message):
        entries(tmp_path, ENTRY.replace(old, new))


def test_no_file_is_no_known_failure(tmp_path):
    none = known_failures.load(tmp_path, TODAY)
    assert none.entries == ()
    assert none.mark(verdict()).status == "fail"
    assert none.problems([verdict()], MATRIX, CHECKS) == []


@pytest.mark.parametrize(
    ("check", "recipe", "values", "named"),
    [
        ("modes", "te-current", (0.31, 0.33), True),
        ("modes", "te-current", (0.31, 0.6), False),
        ("modes", "te-current", (0.6, 0.31), False),
        ("gemm", "te-current", (0.31, 0.33), False),
        ("modes", "te-block", (0.31, 0.33), False),
    ],
)
def test_a_number_is_named_for_its_cell_and_check_in_its_range(tmp_path, check, recipe, values, named):
    number = 'number = [{ metric = "difference", where = "steps", low = 0.2, high = 0.5 }]'
    text = ENTRY.replace('check = "loss parity"', 'check = "modes"').replace('says = "the gap is outside"', number)
    cell, numbers = (
        verdict(recipe=recipe).cell,
        [Measurement(metric="difference", where="steps", value=v) for v in values],
    )
    assert entries(tmp_path, text).names(cell, check, *numbers) is named
    assert entries(tmp_path, text, datetime.date(2026, 3, 2)).names(cell, check, *numbers) is False


@pytest.mark.parametrize(
    ("check", "model"),
    [("GEMM throughput", GATED_GEMMS), ("block throughput", next(iter(TIMED_BLOCKS))), ("throughput", "tiny")],
)
def test_entries_of_timed_checks_and_their_models_are_known(tmp_path, check, model):
    """A gate accepts what ``fp8parity judge`` accepts: it knows all checks, and the cells of all suites."""
    text = ENTRY.replace("loss parity", check).replace('check = "', f'model = "{model}"\ncheck = "')
    cells = [cell for named in suite_cells(presets()).values() for cell in named.values()]
    assert entries(tmp_path, text).problems([], cells, check_names.CHECKS) == []
