"""From what pytest reported to the outcome, the problems and the first sentence: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from fp8parity.gate import results as outcomes
from fp8parity.gate.results import CELL, LINE, CellResult, Results, not_run, unjudged_controls
from fp8parity.gate.selection import unmatched
from fp8parity.judging.verdict import LOSS, Status, Verdict
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.check_names import info_of
from fp8parity.records.schema import AnyRecord
from fp8parity.report.sentence import Outcome
from verdicts import verdict

CELLS = {
    name: Cell(model="tiny", recipe=recipe, execution=Execution(execution))
    for name, recipe, execution in (
        ("bf16", "bf16", "native"),
        ("a", "te-current", "native"),
        ("b", "te-block", "emulated"),
    )
}
FILE = "suites/test_x.py::test_gemm"
ALONE = "only the BF16 control was checked and no recipe:"
NOTHING = "nothing ran, so nothing was checked:"
GREEN = verdict("pass")


def node(cell: str) -> str:
    return f"{FILE}[{cell}]"


def phase(
    when: str,
    cell: str,
    outcome: Literal["passed", "failed", "skipped"] = "passed",
    why: str = "",
    made: CellResult | None = None,
    test: str = "",
) -> pytest.TestReport:
    """A report of a phase of a test, as pytest makes it."""
    skip = ("f.py", 1, why)
    given: Any = {
        "longrepr": skip if outcome == "skipped" else why,
        "when": when,
        "user_properties": [(CELL, cell), *([(LINE, made.model_dump_json())] if made else [])],
    }
    return pytest.TestReport(test or node(cell), ("f.py", 1, ""), {}, outcome, **given)


Phases = list[pytest.TestReport]
WHY = "tensors over 2**31 bytes need a GPU"
LARGE = phase("call", "a", "skipped", WHY, CellResult(applicable=False), "f.py::test_large[a]")
"""A check that has nothing to measure on such a machine."""


def ran(cell: str, *found: Verdict, records: Sequence[AnyRecord] = ()) -> Phases:
    result = CellResult(verdicts=list(found or (GREEN,)))
    result.add(records)
    return [phase("setup", cell), phase("call", cell, "passed", "", result)]


def skip(cell: str, why: str = "no GPU") -> Phases:
    return [phase("setup", cell, "skipped", why)]


def made(*groups: Phases, selected: tuple[str, ...] = ("bf16", "a", "b"), **more) -> Results:
    found = Results(**more)
    for cell in selected:
        if node(cell) not in found.removed:
            found.select(node(cell), cell)
    for report in (r for group in groups for r in group):
        found.note(report, CELLS)
    return found


def outcome(*groups: Phases, asked: str = "", execution: Execution | None = None, **more) -> Outcome:
    return outcomes.outcome(made(*groups, **more), CELLS, asked, execution)


@pytest.mark.parametrize(
    ("phases", "counts"),
    [
        ([ran("bf16"), ran("a"), skip("b")], (2, 1, 0, 0)),
        ([ran("bf16"), [phase("setup", "a", "failed", "no device")], skip("b")], (1, 1, 1, 0)),
        ([ran("bf16"), [phase("setup", "a")], skip("b")], (1, 1, 0, 1)),  # interrupted during the call
        ([], (0, 0, 0, 3)),
    ],
)
def test_each_selected_test_is_in_one_group(phases, counts):
    found = outcome(*phases)
    assert (found.judged, found.skipped, len(found.crashed), len(found.missing)) == counts
    assert sum(counts) == found.selected == 3
    assert found.complete == (counts[2:] == (0, 0))


def test_crash_stays_in_the_manifest_with_its_reason():
    """Another plugin runs the test again, and it passes."""
    found = made([phase("call", "a", "failed", "no device")], ran("a"), selected=("a",))
    [test] = found.of_cells
    assert (test.outcome, test.crashed, test.reason, test.checks) == ("passed", True, "no device", [GREEN.check])
    assert outcomes.outcome(found, CELLS, "", None).crashed == ["test_gemm[a]: no device"]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (made(ran("bf16"), ran("a"), skip("b")), ""),
        (made(ran("bf16"), selected=("bf16",)), ""),
        (made(ran("bf16"), skip("a"), skip("b")), f"{ALONE} 2 tests of recipes were skipped, first no GPU"),
        (
            made(skip("bf16"), skip("a"), elsewhere={"b"}),
            f"{NOTHING} no GPU (2 tests); other parts hold what can run here; with -m cpu every part does",
        ),
        (
            made(skip("bf16", "a first reason"), skip("a", "z"), skip("b", "z"), removed={node("c"): "c"}),
            f"{NOTHING} z (2 tests); a first reason (1 test); -k, -m or a plugin removed 1 cell",
        ),
        (made(ran("bf16"), skip("a"), elsewhere={"bf16"}), f"{ALONE} 1 test of recipes was skipped, first no GPU"),
        (made(ran("bf16"), skip("a"), elsewhere={"b"}), ""),  # the set of all shards decides
    ],
)
def test_nothing_or_the_control_alone_is_a_problem(facts, words):
    assert outcomes.not_run(facts, []) == [words] * bool(words)


@pytest.mark.parametrize(("status", "crashed"), [("pass", True), ("fail", False)])
def test_failure_behind_a_green_verdict_is_a_crash(status: Status, crashed):
    """A red verdict is the reason of its failure."""
    found = made([phase("call", "a", "failed", "boom", CellResult(verdicts=[verdict(status)]))], selected=("a",))
    assert (outcomes.outcome(found, CELLS, "", None).crashed == ["test_gemm[a]: boom"]) == crashed
    assert [v.status for v in (*found.verdicts, *found.crashes.values())] == [status, *["error"] * crashed]


BOTH = {f"f.py::{test}[{c}]": c for test in ("test_y", "test_x") for c in ("a", "bf16")}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (made(ran("a"), ran("b")), ""),
        (made(ran("a"), skip("b")), "required cell b was skipped: no GPU"),
        (made(ran("a"), removed={node("b"): "b"}), "required cell b was removed by -k, -m or a plugin"),
        (made([*ran("a"), LARGE]), ""),
        (made(ran("a"), ran("b"), removed=BOTH), "required cell a was selected without test_x, test_y: -k, -m or a plugin removed part of its tests"),
        (made(ran("bf16"), elsewhere={"b"}), ""),
    ],
)  # fmt: skip
def test_required_cell_must_run(facts, words):
    assert outcomes.not_run(facts, ["[ab]"]) == [words] * bool(words)


def test_control_without_a_test_is_judged_once_by_all_seeds(trajectory):
    """Two recipes used it, one of them went on to a fourth seed."""
    a, b = (Cell(model="nano", recipe=r, execution=Execution.EMULATED) for r in ("te-current", "te-block"))
    runs = [trajectory(seed=seed) for seed in range(4)]
    of_a, of_b = (ran(c.id, verdict("pass", cell=c, check=LOSS), records=r) for c, r in ((a, runs[:3]), (b, runs)))
    phases = [*of_a, *of_b]
    assert unjudged_controls(made(phases, selected=())) == {a.control: runs}
    own = ran(a.control.id, verdict("improved", cell=a.control, check=LOSS), records=runs[:3])
    assert unjudged_controls(made(phases, own, selected=())) == {}
    assert unjudged_controls(made(own, selected=())) == {}


@pytest.mark.parametrize(
    ("expression", "terms"),
    [
        ("", []),
        ("GEMM and (te-current or codes)", []),
        ("codes or gemn", ["'gemn'; did you mean gemm?"]),
        ("not gemn", []),
        ("zzz", ["'zzz'"]),
    ],
)
def test_term_of_k_that_matches_nothing_is_named(expression, terms):
    items: Any = [
        SimpleNamespace(nodeid=f"suites/numerics/test_device.py::{name}", keywords={name: 1})
        for name in ("test_gemm[te-current-tiny-native]", "test_codes[te-block-tiny-native]")
    ]
    found = unmatched(expression, items)
    assert [line.partition("no test matches ")[2] for line in found] == terms
    assert not_run(made(ran("a"), unmatched=found), [])[: len(found)] == found


@pytest.mark.parametrize(
    ("test", "check", "suite"),
    [
        ("suites/numerics/test_numerics.py::test_layers[a-[b]", "suites/numerics/test_layers", "suites/numerics"),
        ("../lib/fp8parity/suites/convergence/test_x.py::test_x", "suites/convergence/test_x", "suites/convergence"),
        ("my_suites/test_gain.py::TestGain::test_gain[a]", "my_suites/test_gain", "my_suites"),
        ("test_own.py::test_own", "test_own", ""),
    ],
)
def test_crash_names_the_suite_of_its_test(test, check, suite):
    [found] = made([phase("setup", "a", "failed", "no device", test=test)]).crashes.values()
    assert (found.check, info_of(found.check).suite) == (check, suite)
