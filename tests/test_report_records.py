"""Which records a session's report reads: those that its own verdicts were made of, whatever else lies in the folder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Literal, cast

import pytest
import reports
from fp8parity.gate.context import PluginContext
from fp8parity.gate.fixture import ParityFixture
from fp8parity.gate.reporter import Reporter
from fp8parity.gate.results import CELL
from fp8parity.gate.selection import known_cells, suite_cells
from fp8parity.records.storage import name_of, write_json
from fp8parity.report import RENDERERS
from fp8parity.training.hardware import Hardware
from fp8parity.workload.presets import presets
from narrowed import some


@pytest.fixture
def session(tmp_path):
    """Judges BF16 and te-current from records of a folder that holds more; returns the report. ``faulty`` checks come to an error."""
    _, given = reports.session(recipes=("te-current",), seeds=3)
    by_name = {name_of(r): r for r in given.records}
    for name, record in {**by_name, **{name_of(r): r for r in [reports.run("tiny", "te-current", 7, 160)]}}.items():
        write_json(tmp_path / name, record)
    runs = {(r.cell, r.seed): r for r in given.records if r.kind == "trajectory"}
    checks = {r.cell: r for r in given.records if r.kind == "measurements"}

    def judge(*, faulty: bool = False):
        def measure(check, cell):
            if faulty:
                raise ValueError("no such layer")
            return checks[cell]

        runner = SimpleNamespace(
            trajectory=lambda cell, seed: runs[cell, seed], measure=measure, skip_reason=lambda check, cell: None
        )
        stand_in = SimpleNamespace(
            runner=runner, corpora=["topics"], seeds=(0, 1, 2), updating=False, goldens=given.goldens, policy=given.policy,
            known=some(given.policy).known, records=tmp_path, models=presets(), hardware=Hardware("cpu", "cpu", None), asked="",
            execution=None, reports=[str(tmp_path / "out" / "r.json")], required=[], require_numbers=False, options=[],
        )  # fmt: skip
        context = cast(PluginContext, stand_in)
        cells = known_cells(suite_cells(context.models))
        reporter = Reporter(context, cells)
        for cell in checks:
            for call in (ParityFixture.loss_parity, lambda parity, cell: parity.numerics("layers", cell)):
                item = SimpleNamespace(user_properties=[], nodeid="x")
                outcome: Literal["passed", "failed"] = "passed"
                try:
                    call(ParityFixture(cast(pytest.Item, item), context), cell)
                except pytest.fail.Exception:
                    assert faulty
                    outcome = "failed"
                test = f"{call.__name__}[{cell.id}]"
                properties = [(CELL, cell.id), *item.user_properties]
                report = pytest.TestReport(
                    test, ("f", 0, "d"), {}, outcome, "no such layer", "call", (), 0, 0, 0, properties
                )
                reporter.pytest_runtest_logreport(report)
        config = SimpleNamespace(option=SimpleNamespace(collectonly=False), stash=pytest.Stash())
        stopped = {"exitstatus": pytest.ExitCode.OK, "shouldfail": False, "shouldstop": False}
        finish = reporter.pytest_sessionfinish(cast(pytest.Session, SimpleNamespace(config=config, **stopped)))
        assert next(finish) is None
        assert list(finish) == []
        return reporter

    return judge


def test_an_older_session_s_further_seeds_stay_out(session):
    found = session().report
    assert "seeds 0, 1, 2" in RENDERERS[".html"](found)
    assert len(found.evidence.records) == 8


def test_an_older_record_of_a_check_that_came_to_an_error_stays_out(session):
    found = session(faulty=True).report
    assert len(found.evidence.records) == 6
    assert not any(name.startswith("snr") for name in reports.plots(found))


def test_a_record_that_cannot_be_read_is_a_problem(session, tmp_path):
    path = tmp_path / "te-current-tiny-native-topics-seed1.json"
    path.write_text(path.read_text().replace('"seed": 1', '"seed": 5'))
    found = session()
    assert not found.report.green
    assert found.report.problems == [
        f"the report lacks its plots: {path}: its checksum does not match its content; it was edited or damaged"
    ]
