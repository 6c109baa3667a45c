"""A run that cannot be compared with its golden, why, and what a golden keeps when it is stored again."""

from __future__ import annotations

import pytest
from fp8parity.judging.references import store
from fp8parity.judging.references.loss import Golden, from_runs, path_of, refuse, store
from fp8parity.records.storage import write_json
from paired import SEEDS


@pytest.fixture
def golden(golden: Golden) -> Golden:
    return golden.model_copy(update={"fingerprint": "0123456789abcdef"})


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"seed": 99, "initial_weights": "other"}, None),
        ({"spec_hash": "other"}, "its model dimensions or schedule differ from the golden's (spec hash)"),
        (
            {"fingerprint": "fedcba9876543210"},
            "the corpus or its tokeniser changed (fingerprint fedcba987654, golden 0123456789ab)",
        ),
        ({"schedule": {"tail": 20.0, "more": 1.0}}, "its schedule has tail 20, and the golden's has 40"),
        ({"schedule": {"tail": 40.0, "more": 1.0}}, None),
        ({"initial_weights": "other"}, "seed 1 starts from other initial weights than the golden's"),
    ],
    ids=str,
)
def test_a_run_that_is_not_of_its_golden(golden, run, changes, why):
    found = run("te-current", 1, fingerprint="0123456789abcdef").model_copy(update=changes)
    assert golden.stale(found) == why


def test_two_seeds_have_two_starts(run):
    with pytest.raises(
        ValueError, match=r"Value error, seeds: two of them start from the initial weights 0123456789ab \["
    ):
        from_runs([run(seed=s, initial_weights="0123456789abcdef") for s in range(2)], [])


def test_a_schedule_has_a_step(run):
    schedule = run().schedule | {"steps": 0}
    assert refuse([run(schedule=schedule)], 1) == "schedule: steps is 0; it is a whole number from 1 on"


def test_ci_is_told_where_to_record(run, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert refuse([run()], 1) == "CI never records goldens; record on a machine you know and commit the file"


@pytest.mark.parametrize(
    ("changes", "kept"), [({}, True), ({"spec_hash": "other"}, False), ({"fingerprint": "other"}, False)], ids=str
)
def test_spreads_stay_beside_new_runs_of_the_same_work(golden, run, tmp_path, changes, kept):
    old = golden.model_copy(update={"fingerprint": run().fingerprint})
    path = write_json(path_of(tmp_path, old.model, old.corpus), old)
    store(tmp_path, [run(seed=s, **changes) for s in SEEDS], [], len(SEEDS))
    assert store.read(path, Golden).spreads == (old.spreads if kept else [])
    assert len(old.spreads) == 1
