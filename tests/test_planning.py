"""Recorded seconds, shards and schedulers, the order of tests, and ``fp8parity plan``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from fp8parity import planning
from fp8parity.cli import main
from fp8parity.planning import (
    OF_A_RUN,
    SCHEDULERS,
    START,
    TRAINED,
    UNKNOWN_SECONDS,
    Host,
    Key,
    Seconds,
    Work,
    digest_of,
    estimate,
    longest_first,
    shard_of,
    split,
    work,
    workers_for,
)
from fp8parity.records import manifest
from fp8parity.records.cell import Cell, Execution
from fp8parity.records.manifest import Manifest, Selected, Shard
from fp8parity.records.schema import Measurements
from fp8parity.records.storage import name_of, write_json
from hypothesis import example, given
from hypothesis import strategies as st
from sessions import GOLDEN

WORKS = st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1000)), max_size=60, unique_by=lambda w: w[0]).map(
    lambda rows: [Work(f"test_{n}", s) for n, s in rows]
)
COUNTS = st.integers(1, 9)


def total(works: Sequence[Work]) -> float:
    return sum(w.seconds for w in works)


@given(WORKS, COUNTS, st.randoms(use_true_random=False))
@example([Work("a", 0.0), Work("b", 0.0)], 2, Random(0))
def test_split_is_complete_balanced_and_deterministic(works, count, draw):
    """Graham's bound."""
    parts = split(works, count)
    assert sorted(w.name for part in parts for w in part) == sorted(w.name for w in works)
    assert sum(not part for part in parts) == max(0, count - len(works))
    shuffled = split(draw.sample(works, len(works)), count)
    assert shuffled == parts and digest_of(shuffled) == digest_of(parts)
    assert max(map(total, parts)) <= total(works) / count + max((w.seconds for w in works), default=0.0) + 1e-6
    assert sorted(w.name for w in longest_first(works)) == sorted(w.name for w in works)


def test_controls_come_first_then_the_longest_and_large_late():
    table = Seconds({Key("test_large", "tiny", "x", "native"): 9.5, Key("test_codes", "tiny", "x", "native"): 2.5})
    names = [("test_large", "x"), ("test_codes", "x"), (TRAINED, "x"), (TRAINED, "bf16")]
    works = [work(f"{t} {r}", Key(t, "tiny", r, "native"), 2 * (t == TRAINED), table) for t, r in names]
    order = [w.name for w in longest_first(works)]
    assert order == [f"{TRAINED} bf16", f"{TRAINED} x", "test_codes x", "test_large x"]


@pytest.mark.parametrize(("workers", "gpus", "takes"), [(1, 0, 130), (2, 0, 65), (10, 0, 50), (10, 1, 70), (10, 2, 50)])
def test_estimate_follows_workers_and_timed_tests_have_a_gpu_alone(workers, gpus, takes):
    works = [Work("a", 50.0), Work("b", 40.0), Work("c", 20.0), *(Work(f"t{i}", 5.0, timed=True) for i in range(4))]
    host = Host(workers, gpus, cores=32)
    assert estimate(works, host) == pytest.approx(START + takes)


def test_runs_that_fill_a_gpu_train_one_after_the_other():
    table = Seconds({Key(TRAINED, "1b", recipe, "native"): 20.0 for recipe in ("bf16", "x", "y")})
    works = [work(r, Key(TRAINED, "1b", r, "native"), 3, table, 10**9, 65e9) for r in ("bf16", "x", "y")]
    for gpus, memory, runs, takes in ((1, 80e9, 3, 3.0), (2, 80e9, 2, 2.0), (1, 140e9, 2, 2.2)):
        host = Host(16, gpus, 16, memory)
        assert estimate(works, host) == pytest.approx(START + takes * 3 * (20 + OF_A_RUN))
        assert workers_for(works, gpus, 16, memory) == (1 if runs == 3 else 2)


@pytest.mark.parametrize(("workers", "cores", "slower"), [(8, 16, 1.0), (16, 16, 2.0), (16, 32, 1.0), (32, 32, 2.0)])
def test_tests_that_run_at_a_time_share_the_cores(workers, cores, slower):
    """Planted: as many equal tests as workers. Each keeps two cores busy."""
    host = Host(workers, 1, cores)
    works = [Work(str(i), 10.0) for i in range(workers)]
    assert estimate(works, host) == pytest.approx(START + 10 * slower)


@pytest.mark.parametrize(
    ("seconds", "gpus", "cores", "count"),
    [
        ([60.0] * 3, 1, 16, 3),
        ([1.0] * 3, 1, 16, 1),
        ([5.0] * 265, 1, 16, 16),
        ([5.0] * 265, 2, 32, 32),
        ([5.0] * 265, 1, 8, 8),
        ([100.0, *[5.0] * 20], 1, 16, 2),
        ([100.0] * 5, 1, 16, 5),
        ([], 1, 16, 1),
    ],
)
def test_number_of_workers_follows_from_the_tests(seconds, gpus, cores, count):
    works = [Work(str(i), s) for i, s in enumerate(seconds)]
    assert workers_for(works, gpus, cores, 80e9) == count
    timed = [replace(one, timed=True) for one in works]
    assert workers_for(timed, gpus, cores, 80e9) == min(count, gpus)


GATES = [
    ("golden/records/h100-gate-sixth", 184, 191), ("golden/records/h200-gate-fifth", 184, 170),
    ("golden/records/found/h100-x2-gate-mps", 184, 124), ("lab/records/h200-daily", 142, 216),
    ("lab/records/h200-losses", 47, 919),
]  # fmt: skip
"""Sets of whole gates with cold caches, on 16 and once on 32 cores, their tests with known seconds, and what they took."""


@pytest.mark.parametrize(("name", "tests", "took"), GATES)
def test_estimate_is_near_what_whole_gates_took(name, tests, took, capsys):
    assert main(["plan", str(GOLDEN.parent / f"{name}.zip"), "--golden-dir", str(GOLDEN)]) == 0
    said = re.search(rf"{tests} of them .*: estimated (\d+) s, took (\d+) s", capsys.readouterr().out)
    assert said and int(said[2]) == took and abs(int(said[1]) / took - 1) < 0.3


HEAD = "test,model,recipe,execution,ranks,seconds\n"
MODES, CODES = Key("test_modes", "small", "te-block", "native"), Key("test_codes", "tiny", "te-block", "native")
ROWS = {
    Key("test_modes", "tiny", "te-block", "native"): 10.0,
    Key("test_modes", "tiny", "te-current", "native"): 30.0,
    MODES: 90.0,
    CODES: 2.0,
}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (MODES, 90.0),
        (Key("test_modes", "tiny", "new", "native"), 20.0),  # the median of that test and model
        (Key("test_modes", "huge", "new", "native"), 30.0),  # of that test
        (Key("test_new", "tiny", "new", "native"), 20.0),  # of all
    ],
)
def test_unknown_test_takes_as_long_as_similar_ones(key, expected):
    assert Seconds(ROWS).of(key) == expected
    assert Seconds().of(key) == UNKNOWN_SECONDS


def test_seconds_are_written_sorted_and_other_rows_stay(tmp_path):
    path = planning.write(tmp_path, "h100", "nvidia-h200", ROWS)
    assert planning.load(tmp_path, "h100").rows == ROWS
    planning.write(tmp_path, "h100", "nvidia-h200", {CODES: 3.14159})
    assert planning.load(tmp_path, "h100").rows == ROWS | {CODES: 3.14}
    assert path.read_text().startswith(f"{HEAD}test_codes,tiny,te-block,native,1,3.14\ntest_modes,small,")


def test_platform_and_not_machine_decides(tmp_path):
    """Two devices of one platform measured a test: each machine that reads them takes the same one."""
    for device, value in (("nvidia-h200", 5.0), ("nvidia-h100", 4.0)):
        planning.write(tmp_path, "h100", device, {CODES: value})
    planning.write(tmp_path, "cpu", "xeon", {CODES: 50.0})
    assert [planning.load(tmp_path, p).of(CODES) for p in ("h100", "cpu", None)] == [4.0, 50.0, 50.0]
    assert planning.load(tmp_path / "nowhere", "h100").rows == {}


CELL = Cell(model="nano", recipe="te-current", execution=Execution.EMULATED)
KEYS = {
    Key("test_modes", "nano", "te-current", "emulated"): 20.0,
    Key(TRAINED, "nano", "te-current", "emulated"): 10.0,
    Key(TRAINED, "nano", "bf16", "native"): 5.0,
}


@pytest.fixture
def golden(tmp_path: Path) -> str:
    (tmp_path / "golden").mkdir()
    (tmp_path / "golden" / "policy.toml").write_text(
        '[[loss]]\nmargin = 0.005\nseeds = [3, 5]\nwhy = "a made-up row"\n'
    )
    return str(tmp_path / "golden")


@pytest.fixture
def records(trajectory, tmp_path: Path) -> Path:
    """The records of a session of 100 s on a CPU with one worker: three seeds of 10 s (BF16: 5 s), and a check of 20 s."""
    folder = tmp_path / "set"
    runs = [
        trajectory(r, s).model_copy(update={"seconds": t})
        for r, t in (("bf16", 5.0), ("te-current", 10.0))
        for s in range(3)
    ]
    where = runs[0].provenance
    check = Measurements(cell=CELL, check="modes", values=[], seconds=20.0, provenance=where, session="s")
    control, own = [name_of(r) for r in runs[:3]], [name_of(r) for r in runs[3:]]

    def test(cell: str, name: str, took: float, *files: str) -> Selected:
        return Selected(cell=cell, test=name, outcome="passed", records=list(files), seconds=took)

    tests = [
        test(CELL.id, TRAINED, 47.0, *own, *control),
        test(CELL.control.id, TRAINED, 0.1, *control),
        test(CELL.id, "test_modes", 33.0, name_of(check)),
        Selected(cell=CELL.id, test="test_codes", outcome="skipped"),
    ]
    for record in (*runs, check):
        write_json(folder / name_of(record), record)
    made = Manifest(
        session="s", options=[], started="a", ended="b", status="ok", provenance=where, seconds=100.0, selected=tests
    )
    manifest.write(folder, made)
    return folder


def test_plan_stores_the_seconds_of_records_without_waiting(records, golden, capsys):
    assert main(["plan", str(records), "--write", "--golden-dir", golden]) == 0
    assert planning.load(Path(golden), "cpu").rows == KEYS
    assert "cpu has no recorded seconds" in capsys.readouterr().out
    assert main(["plan", str(records), "--golden-dir", golden]) == 0
    assert main(["plan", str(records), str(GOLDEN / "records" / "h200-lengths.zip"), "--golden-dir", golden]) == 0
    assert (
        "3 tests, 3 of them with recorded seconds, 1 workers: estimated 104 s, took 100 s (+3%)"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("options", "total", "hours", "shares"),
    [
        ((), 104, 0.03, ["3 tests, 90 s one after the other, takes 104 s"]),
        (("--workers", "2"), 62, 0.02, ["3 tests, 90 s one after the other, takes 62 s"]),
        (("--shards", "2"), 62, 0.03, ["1 tests, 42 s one after", "2 tests, 48 s one after"]),
        (("--test", "test_modes"), 34, 0.01, ["1 tests, 20 s one after the other, takes 34 s"]),
        (("--recipe", "bf16"), 41, 0.01, ["1 tests, 27 s one after the other, takes 41 s"]),
    ],
)
def test_plan_prints_what_each_machine_takes(golden, capsys, options, total, hours, shares):
    planning.write(Path(golden), "cpu", "x", KEYS)
    workers = () if "--workers" in options else ("--workers", "1")
    assert main(["plan", "--platform", "cpu", "--golden-dir", golden, *workers, *options]) == 0
    out = capsys.readouterr().out
    assert all(words in out for words in shares)
    assert len(re.findall("shard", out)) == len(shares)
    assert out.splitlines()[-1].startswith(f"{total} s for ")
    assert out.splitlines()[-1].endswith(f", {hours:.2f} machine hours")


SET: dict[str, tuple[dict[str, str], int, int]] = {
    "a Slurm job array": (
        {"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_STEP": "2", "SLURM_ARRAY_TASK_COUNT": "4"}, 3, 4,
    ),
    "a Slurm job step": ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, 1, 2),
    "a Kubernetes Indexed Job": ({"JOB_COMPLETION_INDEX": "7", "FP8PARITY_SHARDS": "8"}, 8, 8),
    "a GitHub matrix": ({"STRATEGY_JOB_INDEX": "0", "STRATEGY_JOB_TOTAL": "3"}, 1, 3),
    "GitLab": ({"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "5"}, 1, 5),
    "CircleCI": ({"CIRCLE_NODE_INDEX": "1", "CIRCLE_NODE_TOTAL": "5"}, 2, 5),
    "Buildkite": ({"BUILDKITE_PARALLEL_JOB": "4", "BUILDKITE_PARALLEL_JOB_COUNT": "5"}, 5, 5),
}  # fmt: skip
"""Scheduler -> the variables of one task, and its shard."""
ONE_TASK = {"CIRCLE_NODE_INDEX": "0", "CIRCLE_NODE_TOTAL": "1"}


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda s: s.name)
def test_auto_reads_the_variables_of_a_scheduler(scheduler):
    variables, index, count = SET[scheduler.name]
    assert shard_of("auto", {"PATH": "/bin", **variables}) == Shard(index=index, count=count)
    for changes, words in (
        ({}, f"sets {scheduler.index}, and {scheduler.count} is not set; "),
        ({scheduler.count: "4", scheduler.index: "x"}, f": {scheduler.index} is 'x', and not a number; give i/n"),
        ({scheduler.count: "0"}, ": shard .* does not exist"),
    ):
        without = {k: v for k, v in variables.items() if k != scheduler.count}
        with pytest.raises(ValueError, match=f"{scheduler.name}{'' if words[0] == ':' else ' '}{words}"):
            shard_of("auto", without | changes)


def test_none_or_two_schedulers_are_an_error():
    none = r"none of these variables is set: SLURM_ARRAY_TASK_ID .*BUILDKITE_PARALLEL_JOB .*; give i/n"
    with pytest.raises(ValueError, match=none):
        shard_of("auto", {"PATH": "/bin"})
    slurm, gitlab = SET["a Slurm job step"], SET["GitLab"]
    with pytest.raises(ValueError, match="a Slurm job step says 1 of 2 and GitLab says 1 of 5; give i/n"):
        shard_of("auto", slurm[0] | gitlab[0])
    assert shard_of("auto", ONE_TASK | gitlab[0]) == Shard(index=1, count=5)
    assert shard_of("auto", ONE_TASK) == Shard(index=1, count=1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("3/2", "--parity-shard 3/2: shard 3 of 2 does not exist; shards are counted from 1"),
        ("0/2", "shard 0 of 2 does not exist"),
        ("1/0", "shard 1 of 0 does not exist"),
        ("2", "--parity-shard takes i/n, for example 2/4, or auto; not '2'"),
        ("-1/2", "not '-1/2'"),
        ("Auto", "not 'Auto'"),
    ],
)
def test_shard_text_is_i_of_n(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        shard_of(text, {})
