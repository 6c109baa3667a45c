"""``fp8parity plan``: the cost of a gate from recorded seconds, held to what sessions took."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fp8parity.cli import main
from fp8parity.planning import cost, seconds
from fp8parity.planning.balance import Work
from fp8parity.planning.seconds import Key, Seconds
from fp8parity.records import manifest
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Manifest, Selected
from fp8parity.records.schema import Measurements
from fp8parity.records.storage import load_records, name_of, write_json

CELL = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
MODES, RUN, BF16 = (Key(test, "nano", r, e) for test, r, e in (
    ("test_modes", "te-current", "emulated"), ("test_loss_parity", "te-current", "emulated"), ("test_loss_parity", "bf16", "native"),
))  # fmt: skip
POLICY = '[[loss]]\nmargin = 0.005\nseeds = [3, 5]\nwhy = "a made-up row"\n'


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    folder = tmp_path / "golden"
    folder.mkdir()
    (folder / "policy.toml").write_text(POLICY)
    return folder


@pytest.fixture
def records(trajectory, tmp_path: Path) -> Path:
    """What a session of 100 s on a CPU left, with one worker: three seeds of 10 s (BF16: 5 s), and a check of 20 s."""
    folder = tmp_path / "set"
    runs = [
        trajectory(r, s).model_copy(update={"seconds": t})
        for r, t in (("bf16", 5.0), ("te-current", 10.0))
        for s in range(3)
    ]
    where = runs[0].provenance
    check = Measurements(cell=CELL, check="modes", values=[], seconds=20.0, provenance=where, session="s")
    own = [name_of(r) for r in runs[3:]]
    tests = [
        Selected(
            cell=CELL.id,
            test="test_loss_parity",
            outcome="passed",
            records=[*own, *(name_of(r) for r in runs[:3])],
            seconds=47.0,
        ),
        Selected(
            cell=CELL.control.id,
            test="test_loss_parity",
            outcome="passed",
            records=[name_of(r) for r in runs[:3]],
            seconds=0.1,
        ),
        Selected(cell=CELL.id, test="test_modes", outcome="failed", records=[name_of(check)], seconds=33.0),
        Selected(cell=CELL.id, test="test_codes", outcome="skipped"),
    ]
    for record in (*runs, check):
        write_json(folder / name_of(record), record)
    made = Manifest(
        session="s", options=[], started="a", ended="b", status="ok", provenance=where, seconds=100.0, selected=tests
    )
    manifest.write(folder, made)
    return folder


def test_the_seconds_of_a_session_are_those_of_its_records_without_waiting(records, golden, capsys):
    assert main(["plan", str(records), "--write", "--golden-dir", str(golden)]) == 0
    found = seconds.load(golden, "cpu")
    assert found.rows == {MODES: 20.0, RUN: 10.0, BF16: 5.0}
    assert found.seeds == {"test_loss_parity"}
    assert found.session == 100 - (20 + 3 * 10 + 3 * 5)
    assert "cpu has no recorded seconds" in capsys.readouterr().out


def test_the_same_session_is_planned_exactly_and_a_slower_one_is_told(records, golden, capsys):
    main(["plan", str(records), "--write", "--golden-dir", str(golden)])
    capsys.readouterr()
    assert main(["plan", str(records), "--golden-dir", str(golden)]) == 0
    assert "3 tests, 1 workers: planned 100 s, took 100 s (+0%)" in capsys.readouterr().out
    [made] = manifest.load([records])
    manifest.write(records, made.model_copy(update={"seconds": 125.0}))
    assert main(["plan", str(records), "--golden-dir", str(golden)]) == 0
    assert "planned 100 s, took 125 s (-20%)" in capsys.readouterr().out


@pytest.mark.parametrize(("status", "end"), [("ok", 7), ("tests failed", 7), ("interrupted", 0)])
def test_idle_workers_and_unfinished_tests_are_no_seconds_of_the_session(records, golden, status, end):
    """Two workers: it began after 5 s and ended 7 s after its last test. The tests waited 15 s for others. Who interrupts a session cuts
    tests off, so its last seconds belong to them."""
    [made] = manifest.load([records])
    times = {("test_loss_parity", CELL.id): (5.0, 47.0), ("test_modes", CELL.id): (60.0, 33.0)}
    tests = [
        s.model_copy(update=dict(zip(("begun", "seconds"), times.get((s.test, s.cell), (None, None)), strict=True)))
        for s in made.selected
    ]
    manifest.write(records, made.model_copy(update={"selected": tests, "workers": 2, "status": status}))
    main(["plan", str(records), "--write", "--golden-dir", str(golden)])
    assert seconds.load(golden, "cpu").session == 5 + end + (47 + 33 - 20 - 45) / 2


@pytest.mark.parametrize(
    ("options", "total", "hours", "shares"),
    [
        ((), 100, 0.03, ["3 tests, 65 s one after the other, takes 100 s"]),
        (("--workers", "2"), 70, 0.02, ["3 tests, 65 s one after the other, takes 70 s"]),
        (("--workers", "3"), 65, 0.02, ["takes 65 s"]),
        (("--workers", "100000000"), 65, 0.02, ["takes 65 s"]),
        (("--seeds", "5"), 130, 0.04, ["takes 130 s"]),
        (("--versions", "2"), 200, 0.06, ["takes 100 s"]),
        (
            ("--shards", "2"),
            80,
            0.04,
            ["2 tests, 45 s one after the other, takes 80 s", "1 tests, 20 s one after the other, takes 55 s"],
        ),
        (("--test", "test_modes"), 55, 0.02, ["1 tests, 20 s one after the other, takes 55 s"]),
        (("--recipe", "bf16"), 50, 0.01, ["1 tests, 15 s one after the other, takes 50 s"]),
    ],
)
def test_a_plan_says_what_each_machine_takes(records, golden, capsys, options, total, hours, shares):
    main(["plan", str(records), "--write", "--golden-dir", str(golden)])
    capsys.readouterr()
    workers = () if "--workers" in options else ("--workers", "1")
    assert main(["plan", "--platform", "cpu", "--golden-dir", str(golden), *workers, *options]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in shares)
    assert len(re.findall("shard", out)) == len(shares)
    assert out.splitlines()[-1].startswith(f"{total} s for ")
    assert out.splitlines()[-1].endswith(f", {hours:.2f} machine hours")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--platform", "b200"),
            "holds no seconds of such tests on b200 (platforms: none); run them once, then: fp8parity plan SET --write",
        ),
        (("--write",), "--write needs the record sets of sessions"),
        (("--shards", "0"), "--shards 0: at least 1 is needed"),
        (("--seeds", "0"), "--seeds 0: at least 1 is needed"),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(golden, capsys, options, words):
    assert main(["plan", "--golden-dir", str(golden), *options]) == 2
    assert words in capsys.readouterr().err


def test_a_name_without_recorded_seconds_is_told_with_the_most_similar(records, golden, capsys):
    """It would leave a plan without some tests, or without all."""
    assert main(["plan", str(records), "--write", "--golden-dir", str(golden)]) == 0
    assert main(["plan", "--platform", "cpu", "--golden-dir", str(golden), "--recipe", "bf61"]) == 2
    assert "unknown recipe with recorded seconds on cpu 'bf61': did you mean bf16?" in capsys.readouterr().err


def test_shards_that_would_have_no_test_are_refused(records, golden, capsys):
    main(["plan", str(records), "--write", "--golden-dir", str(golden)])
    assert main(["plan", "--platform", "cpu", "--golden-dir", str(golden), "--shards", "4"]) == 2
    assert "--shards 4: there are 3 tests, and each shard needs one" in capsys.readouterr().err


def test_a_set_without_times_is_refused(records, golden, capsys):
    [made] = manifest.load([records])
    manifest.write(records, made.model_copy(update={"seconds": None}))
    assert main(["plan", str(records), "--golden-dir", str(golden)]) == 2
    assert f"{records}: the manifest of session s has no times; it is of an older version" in capsys.readouterr().err
    (records / made.name).unlink()
    assert main(["plan", str(records), "--golden-dir", str(golden)]) == 2
    assert f"{records}: this set has no manifest" in capsys.readouterr().err


def test_a_set_without_a_manifest_gives_the_seconds_of_its_runs(records, golden, capsys):
    for path in records.glob("manifest-*"):
        path.unlink()
    assert main(["plan", str(records), "--write", "--golden-dir", str(golden)]) == 0
    assert "cpu/d.csv: the seconds of 2 cells of " in capsys.readouterr().out
    found = seconds.load(golden, "cpu")
    assert found.rows == {RUN: 10.0, BF16: 5.0}
    assert found.seeds == {"test_loss_parity"}
    assert found.session == 0


def test_a_control_is_trained_once_on_each_machine():
    table = Seconds({RUN: 10.0, BF16: 5.0})
    works = [cost.work(f"test{n}", RUN, 2, table) for n in range(4)]
    assert works[0] == Work("test0", 20.0, "nano bf16", 10.0)
    assert cost.makespan(works, 1, 0) == 90.0
    shares = cost.shares(works, 2, 1, 0, 3.0)
    assert [(s.tests, s.work, s.takes) for s in shares] == [(2, 50.0, 53.0), (2, 50.0, 53.0)]


@pytest.mark.parametrize(
    ("workers", "gpus", "seconds"), [(1, 1, 90.0), (8, 1, 72.0), (8, 2, 36.0), (16, 8, 20.64), (8, 0, 20.0)]
)
def test_no_number_of_workers_is_faster_than_the_gpus(workers, gpus, seconds):
    """Four tests of two runs of 10 s, 8 s of them on the GPU, and the control's of 5 s, 4 s of them on the GPU."""
    table = Seconds({RUN: 10.0, BF16: 5.0}, device={RUN: 8.0, BF16: 4.0})
    works = [cost.work(f"test{n}", RUN, 2, table) for n in range(4)]
    assert cost.makespan(works, workers, gpus) == seconds


SLOWER = 1 + 15 * 0.008 + (16 - 6) * 0.1
"""How much slower each of 16 tests is with 16 workers on one GPU."""


@pytest.mark.parametrize(
    ("workers", "tests", "gpus", "slower"),
    [
        (16, 16, 1, SLOWER),
        (64, 16, 1, SLOWER),
        (16, 3, 1, 1.016),
        (1, 16, 1, 16.0),
        (16, 16, 2, 1.32),
        (16, 16, 4, 1.12),
        (16, 16, 0, 1.0),
    ],
)
def test_tests_are_slower_beside_others(workers, tests, gpus, slower):
    """Workers without a test make nothing slower, and on a CPU nothing is counted."""
    works = [Work(f"w{i}", 10.0) for i in range(tests)]
    assert cost.makespan(works, workers, gpus) == pytest.approx(10.0 * slower)


def test_a_timed_test_has_its_gpu_alone():
    timed = [Work(f"w{i}", 10.0, timed=True) for i in range(16)]
    assert [cost.makespan(timed, 16, gpus) for gpus in (1, 2, 0)] == [160.0, 80.0, 10.0]
    assert cost.work("t", Key("test_block", "nano", "te-current", "native"), 0, Seconds()).timed
    assert not cost.work("t", MODES, 0, Seconds()).timed


@pytest.mark.parametrize(
    ("workers", "gpus", "slower", "device"), [(16, 1, 1.016, False), (8, 1, 1.016, True), (16, 0, 1.0, True)]
)
def test_seconds_are_stored_as_of_a_test_alone(records, workers, gpus, slower, device):
    """A check of 20 s in a session of three tests. The steps of runs that crowd a GPU say nothing of those that have it alone."""
    [made] = manifest.load([records])
    found = cost.recorded(made.model_copy(update={"workers": workers, "gpus": gpus}), load_records(records))
    assert found.rows[MODES] == pytest.approx(20.0 / slower)
    assert bool(found.device) == device


def test_each_worker_delays_a_session_on_gpus():
    works = [Work("w", 10.0)]
    takes = [
        cost.shares(works, 1, workers, gpus, 20.0)[0].takes for workers, gpus in ((32, 0), (1, 1), (32, 1), (32, 4))
    ]
    assert takes == pytest.approx([30.0, 30.2, 36.4, 36.4])


GATES = (
    "h200-gate-seventh",
    "h200-gate-24-second",
    "h100-gate-sixth",
    "h200-x2-gate",
    "h200-x2-gate-24",
    "h200-x2-gate-16",
    "h200-x4-gate",
    "h200-x4-gate-16",
)


@pytest.mark.parametrize("name", GATES)
def test_the_shipped_seconds_plan_what_gates_of_other_machines_took(name):
    """They are those of ``h200-x4-gate-32.zip``: 32 workers on four GPUs."""
    path = Path(__file__).parents[1] / "golden" / "records" / f"{name}.zip"
    [made] = manifest.load([path])
    held = cost.truth(made, load_records(path), seconds.load(path.parents[1], "h100"))
    assert held is not None and abs(held.error) < 0.125


def test_the_fastest_run_says_what_the_gpu_needs_alone(records, golden):
    """Twelve steps of 0.1 s: the others shared the GPU."""
    main(["plan", str(records), "--write", "--golden-dir", str(golden)])
    assert seconds.load(golden, "cpu").device == {RUN: pytest.approx(1.2), BF16: pytest.approx(1.2)}
