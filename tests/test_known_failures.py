"""golden/known_failures.toml: what turns a red verdict into a known one, and what makes an entry red itself."""

from __future__ import annotations

import datetime
import re

import pytest
from fp8parity import known
from fp8parity.judge import Status, Verdict
from fp8parity.record import CellKey
from fp8parity.report import view

TODAY = datetime.date(2026, 3, 1)
MATRIX = ("te-current-tiny-native", "te-current-tiny-emulated", "te-block-tiny-native")
CHECKS = ("loss parity", "gemm")
ENTRY = """
[[known]]
cell = "te-current-*-native"
check = "loss parity"
status = "fail"
link = "https://example.org/issues/7"
expires = 2026-03-02
why = "the scale is applied twice"
"""


def verdict(status: Status = "fail", execution="native", check="loss parity", recipe="te-current") -> Verdict:
    cell = CellKey(model="tiny", recipe=recipe, execution=execution, corpus="synthetic")
    return Verdict(cell=cell, check=check, status=status, headline="the gap is outside")


def entries(tmp_path, text=ENTRY, today=TODAY) -> known.KnownFailures:
    (tmp_path / known.FILE).write_text(text)
    return known.load(tmp_path, today)


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
    found = entries(tmp_path).applied(given)
    assert found.status == status
    assert found.green == (status in ("known", "pass"))


def test_a_known_failure_says_what_it_was_until_when_and_where(tmp_path):
    found = entries(tmp_path).applied(verdict())
    assert found.headline == ("known fail until 2026-03-02: https://example.org/issues/7 (the scale is applied twice); the gap is outside")
    report = view.build([found], {}, [], "here")
    assert report.rows[0].status == "known"


def test_every_status_has_its_place_in_reports():
    for status in Status.__args__:
        assert view.worst([verdict(status)]) == status
    assert view.worst([verdict("known"), verdict("pass")]) == "known"
    assert view.worst([verdict("known"), verdict("fail")]) == "fail"


def test_from_its_expiry_on_a_failure_is_red_again(tmp_path):
    late = entries(tmp_path, today=datetime.date(2026, 3, 2))
    assert late.applied(verdict()).status == "fail"
    assert late.complaints([late.applied(verdict())], MATRIX, CHECKS) == [
        f"{tmp_path / known.FILE}:2: expired on 2026-03-02: te-current-*-native loss parity (https://example.org/issues/7); "
        "fix it, or renew it with a reason"
    ]
    assert late.complaints([verdict(check="gemm"), verdict(recipe="te-block")], MATRIX, CHECKS) == []  # not made here
    assert entries(tmp_path).complaints([verdict("known")], MATRIX, CHECKS) == []


@pytest.mark.parametrize(("strict", "status", "red"), [(True, "pass", 1), (False, "pass", 0), (False, "fail", 1), (True, "fail", 1)])
def test_an_expired_entry_that_is_not_strict_lets_green_be(tmp_path, strict, status, red):
    late = entries(tmp_path, ENTRY + f"strict = {str(strict).lower()}", datetime.date(2026, 3, 2))
    assert len(late.complaints([verdict(status)], MATRIX, CHECKS)) == red


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
        (ENTRY.replace("te-current-*", "te-curent-*") + "strict = false", [], "'te-curent-*-native' matches no cell of the whole matrix"),
        (ENTRY.replace("te-current-*", "te-curent-*"), [], "'te-curent-*-native' matches no cell of the whole matrix"),
        (ENTRY.replace("loss parity", "los parity"), [], "'los parity' matches no check; known: loss parity, gemm"),
        (
            ENTRY.replace("te-current-*", "te-*"),
            [verdict("known"), verdict("pass", recipe="te-block")],
            "te-block-tiny-native loss parity is",
        ),
    ],
)
def test_entries_are_strict(tmp_path, text, verdicts, words):
    found = entries(tmp_path, text).complaints(verdicts, MATRIX, CHECKS)
    assert (words is None and not found) or (words is not None and len(found) == 1 and words in found[0])


def test_the_second_entry_is_named_by_its_own_line(tmp_path):
    found = entries(tmp_path, ENTRY + ENTRY.replace("te-current", "nothing")).complaints([], MATRIX, CHECKS)
    assert len(found) == 1
    assert f"{known.FILE}:10: " in found[0]


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
        ("[[known]]", "[[knwon]]", "unknown table 'knwon'; known: known"),
    ],
)
def test_malformed_entries_name_file_line_and_key(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=re.escape(known.FILE) + r".*" + message):
        entries(tmp_path, ENTRY.replace(old, new))


def test_no_file_is_no_known_failure(tmp_path):
    none = known.load(tmp_path, TODAY)
    assert none.entries == []
    assert none.applied(verdict()).status == "fail"
    assert none.complaints([verdict()], MATRIX, CHECKS) == []
