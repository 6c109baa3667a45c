"""Logs that may hold several series: the question, the option that decides, and a NaN that no option hides."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
from curves import curve
from fp8parity import runs
from fp8parity.cli import main
from hypothesis import given, settings
from hypothesis import strategies as st

N = 60
A, B = ([round(x, 5) for x in made.loss] for made in (curve(steps=N), curve(steps=N, chaos=1).with_gap(0.01)))
Row = tuple[int, float, str]
"""Step, loss and rank."""
NAN = float("nan")


def as_objects(rows: Sequence[Row], rank: str = "rank") -> list[dict[str, object]]:
    return [{"step": s, "loss": x, **({rank: who} if who else {})} for s, x, who in rows]


def as_table(rows: Sequence[Row], delimiter: str = ",") -> str:
    names = ["step", "loss", *(["rank"] if rows[0][2] else [])]
    return "".join(delimiter.join(map(str, row[: len(names)])) + "\n" for row in [names, *rows])


def as_text(form: str, rank: str) -> Callable[[Sequence[Row]], str]:
    return lambda rows: "".join((rank.format(who) if who else "") + form.format(s, x) for s, x, who in rows)


FORMATS: dict[str, tuple[str, Callable[[Sequence[Row]], str]]] = {
    "CSV": ("a.csv", as_table),
    "TSV": ("a.tsv", lambda rows: as_table(rows, "\t")),
    "JSON lines": ("a.jsonl", lambda rows: "".join(json.dumps(row) + "\n" for row in as_objects(rows))),
    "JSON list": ("a.json", lambda rows: json.dumps(as_objects(rows, "process_index"))),
    "trainer state": ("a.json", lambda rows: json.dumps({"log_history": as_objects(rows)})),
    "printed": ("a.log", as_text("step {} | loss {:.5f}\n", "[rank{}]: ")),
    "Megatron, srun -l": ("a.log", as_text("iteration {}/60 | consumed samples: 1 | lm loss: {:.5E} |\n", "{}: ")),
    "kubectl logs --prefix": ("a.log", as_text("step {} loss {:.5f}\n", "[pod/worker-{}/main] ")),
    "docker compose": ("a.log", as_text("step {} loss {:.5f}\n", "worker-{}  | ")),
    "NeMo-RL": ("a.log", as_text("=== Step {}/60 ===\n> Training...\n\nResults:\n  - Loss: {:.5f}\nTiming:\n", "")),
}
RANKED = [name for name in FORMATS if name != "NeMo-RL"]


class Log(NamedTuple):
    """Rows of two series, the option that decides, and the series that it gives."""

    rows: list[Row]
    option: str
    right: dict[str | int, list[tuple[int, float]]]


def series(losses: Sequence[float], who: str = "", first: int = 1) -> list[Row]:
    return [(s, x, who) for s, x in enumerate(losses, first)]


def plain(rows: Sequence[Row]) -> list[tuple[int, float]]:
    return [row[:2] for row in rows]


def ranks(at: int, ahead: int) -> Log:
    """Two ranks; the first is ``ahead`` lines ahead."""
    a, b = series(A, "0"), series(B, "1")
    rows = [row for i in range(0, N, ahead) for part in (a, b) for row in part[i : i + ahead]]
    mean = [(s, (x + y) / 2) for (s, x, _), (_, y, _) in zip(a, b, strict=True)]
    return Log(rows, "rank", {"0": plain(a), "1": plain(b), "mean": mean})


def rank_changes(at: int, ahead: int) -> Log:
    """A run whose restart is logged by another rank. Its losses repeat but for noise."""
    a, b = series(A[: at + ahead], "15"), series(B[at:], "7", at + 1)
    return Log([*a, *b], "rank", {"15": plain(a), "7": plain(b)})


def second_run(at: int, ahead: int) -> Log:
    a, b = series(A), series(B[:at])
    return Log([*a, *b], "run", {1: plain(a), 2: plain(b)})


def restart(at: int, ahead: int) -> Log:
    return Log(
        [*series(A[: at + ahead]), *series(B[at:], "", at + 1)],
        "restarts",
        {"replace": plain([*series(A[:at]), *series(B[at:], "", at + 1)])},
    )


def epochs(at: int, ahead: int) -> Log:
    return Log([*series(A[:at]), *series(B[:at])], "restarts", {"join": plain(series(A[:at] + B[:at]))})


def second_value(at: int, ahead: int) -> Log:
    rows = series(A)
    return Log(
        [*rows[:at], (at, B[at], ""), *rows[at:]],
        "restarts",
        {"replace": plain([*rows[: at - 1], (at, B[at], ""), *rows[at:]])},
    )


CASES = [ranks, rank_changes, second_run, restart, epochs, second_value]
PLACES = {"at": st.integers(22, 50), "ahead": st.integers(1, 6)}


def read(path: object, **asked: object) -> list[tuple[int, float]]:
    run = runs.read(path, **asked)  # type: ignore[arg-type]
    return list(zip(run.points, run.loss, strict=True))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=6, deadline=None)
@given(**PLACES)
def test_second_series_is_asked_for_and_option_decides(format, case, at, ahead, tmp_path_factory):
    log, (name, write) = case(at, ahead), FORMATS[format]
    if log.rows[0][2] and format not in RANKED:
        return
    path = tmp_path_factory.mktemp("log") / name
    path.write_text(write(log.rows))
    with pytest.raises(ValueError, match=f"--{log.option} "):
        runs.read(path)
    pods = "worker-" if format in ("kubectl logs --prefix", "docker compose") else ""
    for value, right in log.right.items():
        told = f"{pods}{value}" if log.option == "rank" and value != "mean" else value
        got = read(path, **{log.option: told})
        assert [at for at, _ in got] == [at for at, _ in right]
        assert [x for _, x in got] == pytest.approx([x for _, x in right], abs=2e-5)


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=20, deadline=None)
@given(**PLACES, place=st.integers(0, N - 1))
def test_no_option_hides_a_nan_of_any_row(case, at, ahead, place, tmp_path_factory):
    log = case(at, ahead)
    rows = [(s, NAN if i == place % len(log.rows) else x, who) for i, (s, x, who) in enumerate(log.rows)]
    path = tmp_path_factory.mktemp("log") / "a.jsonl"
    path.write_text(FORMATS["JSON lines"][1](rows))
    for value in log.right:
        assert runs.read(path, **{log.option: value}).not_finite, value
    error, found = "", []
    try:
        found = runs.read(path).not_finite  # where the NaN stands for the only value that differs
    except ValueError as question:
        error = str(question)
    assert found or "a loss is not finite at step" in error


def test_second_loss_below_one_step_is_a_second_value(tmp_path):
    blocks = (f"Step {s}/60\nStep {s}/60\n  - Loss: {x}\n  - Loss: {x + 1}\n" for s, x in enumerate(A))
    (tmp_path / "a.log").write_text("".join(blocks))
    with pytest.raises(ValueError, match="several rows of Step 0 have different losses"):
        runs.read(tmp_path / "a.log")


@pytest.mark.parametrize("format", RANKED)
def test_equal_rows_of_ranks_are_one_series(format, tmp_path):
    name, write = FORMATS[format]
    rows = [(s, x, who) for s, x in enumerate(A) for who in ("0", "1")]
    (tmp_path / name).write_text(write(rows))
    assert dict(read(tmp_path / name)) == pytest.approx(dict(enumerate(A)))
    rows[71] = (35, NAN, "1")
    (tmp_path / name).write_text(write(rows))
    assert runs.read(tmp_path / name).not_finite == [35]


OPTIONS = [
    ("--rank 5", ranks, "unknown value of --rank '5'"),
    ("--run 3", second_run, "it holds 2 runs, and none is --run 3"),
    ("--run 0", second_run, "the Nth run of a file (from 1)"),
    ("--rank mean", rank_changes, "so they have no mean"),
    ("--rank any", rank_changes, "--restarts replace"),
]


@pytest.mark.parametrize(("options", "case", "says"), OPTIONS)
def test_option_that_does_not_decide_is_refused(options, case, says, tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(FORMATS["JSON lines"][1](case(30, 3).rows))
    assert main(["import", str(path), *options.split()]) == 2
    assert says in capsys.readouterr().err


def test_rank_change_at_a_restart_is_joined_if_told_or_equal(tmp_path):
    (tmp_path / "b.log").write_text(FORMATS["Megatron, srun -l"][1]([*series(A[:40], "15"), *series(A[25:], "7", 26)]))
    assert dict(read(tmp_path / "b.log")) == pytest.approx(dict(enumerate(A, 1)), abs=1e-4)
    (tmp_path / "a.log").write_text(FORMATS["Megatron, srun -l"][1](rank_changes(30, 9).rows))
    right = dict(enumerate(A[:30] + B[30:], 1))
    assert dict(read(tmp_path / "a.log", rank="any", restarts="replace")) == pytest.approx(right, abs=1e-4)


MEGATRON = "WARNING:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration 51 (found NaN)\n"
MESSAGES = {
    MEGATRON: 51,
    "Loss is nan, stopping training\n": 51,
    "RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.\n": 51,
    "no NaN found in 50 steps; loss is nan: False\n": None,
    "Gradient overflow. Skipping step, loss scaler 0 reducing loss scale to 32768\n": None,
}


@pytest.mark.parametrize(("message", "place"), MESSAGES.items())
@pytest.mark.parametrize("format", ["Megatron, srun -l", "CSV", "JSON lines"])
def test_message_of_a_nan_is_a_point_after_the_last(format, message, place, tmp_path):
    name, write = FORMATS[format]
    (tmp_path / name).write_text(write(series(A[:50])) + message)
    run = runs.read(tmp_path / name)
    assert run.not_finite == ([place] if place else [])
    assert run.points == [*range(1, 51), *([place] if place else [])]
    assert any(message.strip()[:50] in note for note in run.notes) == bool(place)


def test_metrics_by_step_lack_a_loss_that_was_nan(tmp_path):
    """NeMo-RL leaves a NaN out; a shorter metric may come first."""
    columns = {
        "validation/accuracy": {str(s): 0.5 for s in range(0, N, 10)},
        "train/loss": {str(s): x for s, x in enumerate(A, 1) if s not in (17, 40)},
        "train/lr": {str(s): 1e-3 for s in range(1, N + 1)},
    }
    (tmp_path / "a.json").write_text(json.dumps(columns))
    run = runs.read(tmp_path / "a.json")
    assert (len(run.points), run.points[-1], run.empty) == (N - 2, N, [17, 40])


REFUSED = {
    "INFO - layers.0.fc1_x_underflows% iteration={:06d} value={:.5f}\n": "no loss; its keys are iteration, value",
    '{{"step": {}, "value": {}}}\n': "no loss; its keys are step, value",
    "step {} avg_loss {}\n": "'avg_loss' may be a mean over many steps",
}


@pytest.mark.parametrize(("form", "says"), REFUSED.items())
def test_key_that_may_not_be_the_loss_is_refused(form, says, tmp_path, capsys):
    (tmp_path / "a.log").write_text(as_text(form, "")(series(A)))
    assert main(["import", str(tmp_path / "a.log"), "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert says in err and "--loss" in err
