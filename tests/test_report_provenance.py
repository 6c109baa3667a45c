"""Where a report's numbers come from, and the commands that get them again."""

from __future__ import annotations

import pytest
import reports
from fp8parity.records.cell import Cell
from fp8parity.report import provenance
from fp8parity.report.evidence import Evidence
from verdicts import verdict


class TestProvenance:
    def test_two_machines_are_two_sets(self):
        _, given = reports.session(recipes=("te-current",))
        other = [
            r.model_copy(update={"provenance": reports.provenance(device="NVIDIA B200")}) for r in given.records[:2]
        ]
        found = provenance.provenances(Evidence(records=[*other, *given.records[2:]], goldens=given.goldens))
        assert [(o.name, o.records) for o in found] == [
            ("Records, set 1", 2),
            ("Records, set 2", 6),
            ("Golden of tiny on topics", 8),
        ]
        assert ("device", "NVIDIA B200, sm_90") in found[0].facts

    @pytest.mark.parametrize(
        ("recipe", "execution", "corpus", "expected"),
        [
            ("bf16", "native", "topics", "pytest suites/convergence --recipe bf16 --model tiny"),
            (
                "te-block",
                "fused",
                "topics",
                "pytest suites/convergence --recipe te-block --model tiny --execution fused",
            ),
            (
                "r",
                "emulated",
                "text:a b",
                "pytest suites/convergence --recipe r --model tiny --execution emulated --corpus 'text:a b'",
            ),
        ],
    )
    def test_commands(self, recipe, execution, corpus, expected):
        cell = Cell(model="tiny", recipe=recipe, execution=execution, corpus=corpus)
        assert provenance.command([verdict("pass", cell=cell, check="loss parity")], Evidence()) == expected
