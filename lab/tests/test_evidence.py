"""The scripts behind lab/docs/evidence: rules of other projects, trials, simulated gates, and planted pairs of runs."""

from __future__ import annotations

from functools import cache, partial

import evidence
import fault_table
import head_to_head
import matrix
import pairs
import pytest
import simulated
import trials
from documents import ROOT
from fp8parity.judging.policy import Policy
from fp8parity.judging.references import Goldens
from fp8parity.records.schema import AnyRecord
from fp8parity.records.storage import load_records
from sessions import stored

RECORDS = (ROOT / "golden" / "records", ROOT / "lab" / "records")


@cache
def references() -> tuple[Goldens, Policy]:
    kept, rules = stored()
    return kept, rules.model_copy(update={"known": None})


@cache
def records(name: str) -> list[AnyRecord]:
    return load_records(next(p for folder in RECORDS if (p := folder / f"{name}.zip").exists()))


@cache
def model(*names: str) -> trials.Model:
    [found] = trials.models([records(name) for name in names], *references())
    return found


def test_exact_rules_fail_sound_runs_and_wide_rules_miss_faults():
    results = list(head_to_head.judged(model("calibration/micro"), references()[0]))
    count = partial(head_to_head.count, results)
    assert count("torchtitan", trials.FRAMEWORK) == head_to_head.Count(11, 11)
    sound = count("torchtitan", trials.SOUND, trials.REPLICAS)
    assert sound.red == sound.n > 0 == count(head_to_head.OURS, trials.SOUND, trials.REPLICAS).red
    assert count("Megatron-LM, 5%", trials.FRAMEWORK).red < count(head_to_head.OURS, trials.FRAMEWORK).red
    page = (ROOT / "lab/docs/evidence/loss-gate.md").read_text()
    assert all(f"| {row[1]} | {row[2]} | {row[3]} |" in page for row in evidence.wrong(results))


@pytest.mark.slow
def test_simulated_sound_gates_pass_and_gaps_are_found():
    # The mean of two seeds needs more than three recorded ones: a draw would often take one twice.
    known = simulated.noise(model("micro-h100", "micro-xeon", "micro-xeon-nvfp4"))
    assert known is not None
    cell = next(c for c in known.cells if c.recipe == "te-current")
    assert not simulated.gates(known, references()[0], 5).red.any()
    share = partial(simulated.share_found, known, cell, stored=references()[0], draws=5)
    assert [share(gap=gap) for gap in (0.0, 0.003)] == [0, 1]


def test_planted_pairs_have_their_gaps_and_verdicts():
    found = pairs.recorded(records("micro-xeon"))
    assert len(found) >= 20
    for p in found:
        assert p.candidate.seed == p.control.seed and all(o.seed != p.candidate.seed for o in p.others)
    made = pairs.planted(found[0])
    assert list(made) == [*pairs.GAPS, pairs.GROWS, *pairs.NOISY, pairs.OTHER]
    ratio = [made[pairs.GROWS][1].loss[i] / made["no gap"][1].loss[i] for i in (0, -1)]
    assert ratio == pytest.approx([1.0, 1.005])
    assert "| gap 1% | 2 | fail: 2 | pass: 0 [0.0%, 84.2%] |" in pairs.table(found[:2])


def test_page_of_faults_is_that_of_the_catalogue():
    assert (ROOT / "lab/docs/evidence/faults.md").read_text() == fault_table.page()


def test_matrix_holds_each_planned_fault_and_check():
    """`python lab/benchmarks/matrix.py measure` adds what is missing."""
    assert {(f.name, check) for f, check, _ in matrix.planned()} == {(r.fault, r.check) for r in matrix.table()}


def test_page_of_the_matrix_is_that_of_its_table():
    assert (ROOT / "lab/docs/evidence/matrix.md").read_text() == matrix.page()


def test_matrix_row_names_what_a_fault_changes():
    fault = next(f for f in matrix.CATALOGUE if f.name == "scale twice too large")
    of = matrix.subject(fault)
    assert of
    codes, gemm = (matrix.row(fault, check, of) for check in ("codes", "gemm"))
    assert codes and "differing scales @ dgrad_dy" in codes.rules
    assert gemm and "fprop sqnr" in gemm.rules + gemm.numbers
    assert matrix.row(fault, "experts", of) is None


@pytest.mark.parametrize(
    ("seconds", "expected"), [({"a": 1, "b": 1, "c": 1.5}, ("c",)), ({"a": 1, "b": 1, "c": 3}, ("a", "b"))]
)
def test_cover_is_the_cheapest_that_sees_every_fault(seconds, expected):
    assert matrix.cover({"x": {"a", "c"}, "y": {"b", "c"}}, seconds) == expected
