"""A verdict as data, and the first sentence of a report: reasons to refuse, their order, notes."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from fp8parity.judging.table import Judged, Place
from fp8parity.judging.verdict import (
    Gap,
    GemmDetail,
    LossDetail,
    NumericsDetail,
    SpeedDetail,
    Status,
    Verdict,
)
from fp8parity.records.cell import Cell, Execution, Mode
from fp8parity.report.sentence import Outcome, Unable, by_severity, sentence, worst
from verdicts import verdict

ROW = Judged(
    cell=verdict("pass").cell, check="gradients", metric="bias", where="K=512", value=math.inf, status=Place.WORSE
)
SPEED = SpeedDetail(
    ratio=1.25, low=1.2, high=1.3, pairs=30, bf16_tokens_per_second=100, tokens_per_second=125, bf16_mfu=None, mfu=None, bf16_memory=4,
    memory=6, mode=Mode.EAGER,
)  # fmt: skip
DETAILS = {
    "loss": LossDetail(margin=0.005, seeds=[0], unmeasured=["x"]),
    "numerics": NumericsDetail(kernels=["k"]),
    "speed": SPEED,
    "gemms": GemmDetail(ratios={"eager": 1.5}, peak_tflops=700),
}


@pytest.mark.parametrize("kind", DETAILS)
def test_json_names_the_kind_of_detail_and_reads_back_as_the_same(kind):
    made = verdict("fail", detail=DETAILS[kind], rows=[ROW])
    assert json.loads(made.model_dump_json())["detail"]["kind"] == kind
    assert Verdict.model_validate_json(made.model_dump_json()) == made
    assert {name: getattr(made, name) is not None for name in DETAILS} == {name: name == kind for name in DETAILS}


@pytest.mark.parametrize(
    ("status", "red"),
    [
        *((status, True) for status in ("fail", "inconclusive", "drift", "no-golden", "stale", "error")),
        *((status, False) for status in ("pass", "improved", "known")),
    ],
)
def test_only_a_red_verdict_has_failing_numbers(status, red):
    for kind in ("loss", "numerics", "gemms"):
        assert verdict(status, detail=DETAILS[kind], rows=[ROW]).failing == ([ROW] if red else [])
    assert verdict(status).failing == []
    assert verdict(status).green is not red


REASON = "(gradients: 3 of 21 numbers are outside their bounds)"
ALONE = "; BF16 was not checked: the framework may have changed"
PARTLY = "; --parity-execution native was asked for, and 2 tests of it cannot run here: te-block (2 tests, needs sm_90)"
LOST = "2 selected tests: 1 judged, 0 skipped, 0 crashed, 1 missing (first test_x)"
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
    rows = [replace(ROW, metric=m, status=Place.INSIDE, why="r", unmeasured="") for m in messages]
    return of(recipe, "pass", detail=NumericsDetail(), rows=rows)


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
        ([], ["the set is torn"], None, "Refuse: the set is torn."),
        (
            [of("a", "pass")],
            ["cell x was skipped: y"],
            None,
            "Refuse: the only check that ran is green, but cell x was skipped: y.",
        ),
        ([of("a", "pass")] * 2, ["one"], BROKEN, f"Refuse: all 2 checks that ran are green, but {LOST}."),
        ([of("a")], ["one"], None, f"Refuse: a on tiny fails {REASON}{ALONE}."),
        ([of("a")], [], BOTH, f"Refuse: a on tiny fails {REASON}{ALONE}. {LOST}{PARTLY}."),
        (
            [of("a"), of("bf16")],
            [],
            None,
            f"Refuse: bf16 on tiny fails {REASON}; BF16 itself computes otherwise: look at the framework, not at a "
            "recipe. 2 of 2 checks are not green; also a on tiny (fail).",
        ),
    ],
)
def test_the_sentence_names_verdicts_and_problems(verdicts, problems, outcome, text):
    assert sentence(verdicts, problems, outcome) == text


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
    ("changes", "text"),
    [
        ({"blame": "the recipe moved"}, "(gap +0.81% [+0.66%, +0.97%], margin 0.50%); the recipe moved"),
        (
            {"reasons": ["left the band in steps 0 to 9"]},
            "(left the band in steps 0 to 9; gap +0.81% [+0.66%, +0.97%], margin 0.50%)",
        ),
        (
            {"reasons": ["left: steps 0 to 9, seed 0"], "gap": Gap(mean=0, low=-0.1, high=0.1, n=3, text="+0.26%")},
            "(left: steps 0 to 9, seed 0)",
        ),
        ({"gap": None, "blame": "the recipe moved"}, "(loss parity: the headline); the recipe moved"),
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
