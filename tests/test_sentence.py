"""The first sentence of a report as a whole: each reason to refuse, its order, and what an accepted session still says."""

from __future__ import annotations

import pytest
from fp8parity.judging.verdict import Gap, LossDetail, NumericsDetail, Status, Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.report.sentence import Outcome, Unable, by_severity, sentence, unmeasured, worst
from verdicts import verdict

REASON = "(gemm: 3 of 21 numbers are outside their bounds)"
PARTLY = "; --parity-execution native was asked for, and 2 tests of it cannot run here: te-block (2 tests, needs sm_90)"
LOST = "2 selected tests: 1 judged, 0 skipped, 0 crashed, 1 missing (first test_x)"
WHOLE = Outcome(selected=1, judged=1, skipped=0)
ASKED = Outcome(
    selected=1,
    judged=1,
    skipped=0,
    asked="--parity-execution native",
    unable=[Unable(reason="needs sm_90", recipes=["te-block"], tests=2)],
)
BROKEN = Outcome(selected=2, judged=1, skipped=0, missing=["test_x"])
BOTH = ASKED.model_copy(update={"selected": 2, "missing": ["test_x"]})


def of(recipe: str, status: Status = "fail", **changes: object) -> Verdict:
    cell = Cell(model="tiny", recipe=recipe, execution=Execution.NATIVE, corpus="topics")
    return verdict(status, cell=cell, **changes)


def bare(recipe: str, *messages: str) -> Verdict:
    return of(recipe, "pass", detail=NumericsDetail(unmeasured=[*messages]))


def loss(**changes: object) -> Verdict:
    gap = Gap(mean=0.0081, low=0.0066, high=0.0097, n=3, text="+0.81% [+0.66%, +0.97%]")
    detail = LossDetail(margin=0.005, seeds=[0, 1, 2], gap=gap).model_copy(update=changes)
    return of("a", check="loss parity", headline="the headline", detail=detail)


@pytest.mark.parametrize(
    ("verdicts", "problems", "outcome", "text"),
    [
        ([], [], None, "Refuse: nothing was checked."),
        ([], [], ASKED, f"Refuse: nothing was checked{PARTLY}."),
        ([of("a", "pass")], [], None, "Accept: the only check is green."),
        ([of("a", "pass")], [], WHOLE, "Accept: the only check is green."),
        ([of("a", "pass")] * 2, [], None, "Accept: all 2 checks are green."),
        ([of("a", "pass")] * 2, [], ASKED, f"Accept: all 2 checks are green{PARTLY}."),
        ([], ["the set is torn"], None, "Refuse: the set is torn."),
        ([], ["the set is torn."], None, "Refuse: the set is torn."),
        (
            [of("a", "pass")],
            ["cell x was skipped: y"],
            None,
            "Refuse: the only check that ran is green, but cell x was skipped: y.",
        ),
        ([of("a", "pass")], ["one", "two"], ASKED, f"Refuse: the only check that ran is green, but one{PARTLY}."),
        ([of("a", "pass")] * 2, ["one"], BROKEN, f"Refuse: all 2 checks that ran are green, but {LOST}."),
        ([of("a")], ["one"], None, f"Refuse: a on tiny fails {REASON}."),
        ([of("a")], [], BOTH, f"Refuse: a on tiny fails {REASON}. {LOST}{PARTLY}."),
    ],
)
def test_the_sentence_names_verdicts_and_problems(verdicts, problems, outcome, text):
    assert sentence(verdicts, problems, outcome) == text


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("error", "could not be checked"), ("fail", "fails"), ("drift", "drifted"), ("stale", "does not match its golden"),
        ("no-golden", "has no golden"), ("inconclusive", "is inconclusive"),
    ],
)  # fmt: skip
def test_each_red_status_has_its_words(status, words):
    assert sentence([of("a", "pass"), of("b", status)], []) == f"Refuse: b on tiny {words} {REASON}."


def test_the_sentence_names_the_worst_cell_first():
    given = [
        of("f", "inconclusive"),
        of("g", "pass"),
        of("e", "no-golden"),
        of("d", "stale"),
        of("c", "drift"),
        of("b"),
        of("a", "error"),
    ]
    also = "also b on tiny (fail), c on tiny (drift), d on tiny (stale), e on tiny (no-golden) and 1 more cell"
    assert (
        sentence(given, []) == f"Refuse: a on tiny could not be checked {REASON}. 6 of 7 checks are not green; {also}."
    )
    assert [v.cell.recipe for v in by_severity(given)] == ["a", "b", "c", "d", "e", "f"]
    assert [worst(given[:n]) for n in (1, 3, 7)] == ["inconclusive", "no-golden", "error"]
    assert worst([of("a", "pass"), of("b", "improved"), of("c", "known")]) == "known"
    assert worst([of("a", "pass"), of("b", "improved")]) == "improved"


@pytest.mark.parametrize(
    ("count", "more"), [(2, ""), (5, ""), (6, " and 1 more cell"), (7, " and 2 more cells"), (9, " and 4 more cells")]
)
def test_four_further_cells_are_named(count, more):
    also = ", ".join(f"r{i} on tiny (fail)" for i in range(1, min(count, 5)))
    text = sentence([of(f"r{i}") for i in range(count)], [])
    assert text == f"Refuse: r0 on tiny fails {REASON}. {count} of {count} checks are not green; also {also}{more}."


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "(gap +0.81% [+0.66%, +0.97%], margin 0.50%)"),
        ({"moved": "the recipe moved"}, "(gap +0.81% [+0.66%, +0.97%], margin 0.50%); the recipe moved"),
        ({"first_out": 0}, "(left the band at step 0, gap +0.81% [+0.66%, +0.97%], margin 0.50%)"),
        (
            {"odd_start": "0.5 of the golden's"},
            "(first step: 0.5 of the golden's; gap +0.81% [+0.66%, +0.97%], margin 0.50%)",
        ),
        ({"gap": None, "moved": "the recipe moved"}, "(loss parity: the headline); the recipe moved"),
    ],
)
def test_a_loss_is_named_with_its_numbers(changes, text):
    assert sentence([loss(**changes)], []) == f"Refuse: a on tiny fails {text}."


def test_an_accepted_session_notes_special_cells():
    given = [
        of("a", "known"),
        of("a", "known", check="other"),
        of("b", "known"),
        of("c", "improved"),
        of("d", "improved"),
        bare("e", "x"),
    ]
    assert sentence(given, []) == (
        "Accept: all 6 checks are green; known failures among them: a on tiny, b on tiny; "
        "better than BF16 by more than the margin: c on tiny, d on tiny; "
        "1 of them judged in part by rules alone, because measured numbers are missing."
    )
    alone = "1 of them judged in part by rules alone, because measured numbers are missing."
    assert sentence([of("a", "pass"), bare("b", "x")], []) == f"Accept: all 2 checks are green; {alone}"
    assert sentence([of("a", "improved")], []).endswith("by more than the margin: a on tiny.")


def test_a_message_about_missing_numbers_counts_its_cells():
    assert unmeasured([bare("a", "x"), bare("b", "x", "y"), bare("c", "y", "z")]) == [
        "x (2 cells, first a-tiny-native)",
        "y (2 cells, first b-tiny-native)",
        "z (1 cell, first c-tiny-native)",
    ]
