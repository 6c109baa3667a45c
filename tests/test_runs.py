"""Runs of other frameworks: each format is read as it was written, and what is no run, or may be several, is refused in one line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from curves import FORMATS, HF, Table, curve, table
from fp8parity import runs
from fp8parity.cli import main
from fp8parity.records.storage import write_json
from hypothesis import given, settings
from hypothesis import strategies as st
from log_writers import WRITERS, Curve, automodel, deepspeed, megatron, megatron_tensorboard, tensorboard
from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

DIGITS = {
    "HF, trainer_state.json of 4 decimals": 4,
    "Megatron, printed": 6,
    "torchtitan, printed": 5,
    "nanochat, printed": 6,
    "nanoGPT, printed": 4,
    "AutoModel, printed": 4,
    "Nanotron, printed": 2,
}


@pytest.mark.parametrize("format", WRITERS)
def test_format_is_read_as_it_was_written(format, tmp_path):
    made = curve(steps=50)
    run = runs.read(WRITERS[format](tmp_path / "run", made))
    assert run.decimals == DIGITS.get(format)
    assert run.axis == ("samples" if format == "DeepSpeed, CSV" else "steps")
    assert run.points == [64 * s if run.axis == "samples" else s for s in made.steps]
    if format != "nanochat, printed":
        tolerance = 10.0 ** -DIGITS[format] if format in DIGITS else 1e-6
        assert run.loss == pytest.approx(made.loss, abs=tolerance)
    if run.grad_norm:
        assert run.grad_norm == pytest.approx(made.grad_norm, rel=1e-2)
    if run.learning_rate and format != "nanochat, printed":
        assert run.learning_rate == pytest.approx(made.learning_rate, rel=1e-2, abs=1e-8)
    assert (run.not_finite, run.missing, run.replaced) == ([], 0, 0)


def test_resumed_run_keeps_the_last_writer(tmp_path):
    whole = curve(steps=60)
    first = Curve([x + 1 for x in whole.loss[:40]], whole.grad_norm[:40], whole.learning_rate[:40])
    again = replace(
        whole, loss=whole.loss[30:], grad_norm=whole.grad_norm[30:], learning_rate=whole.learning_rate[30:], first=31
    )
    for write, path in ((automodel, tmp_path / "jsonl"), (megatron_tensorboard, tmp_path / "events")):
        write(path, first)
        run = runs.read(write(path, again), restarts="replace")
        assert run.replaced == 10
        assert run.loss == pytest.approx([*(x + 1 for x in whole.loss[:30]), *whole.loss[30:]], rel=1e-6)


def test_skipped_step_is_no_nan(tmp_path):
    """Where all steps since the last log were skipped, Megatron prints no loss, and counts no NaN."""
    path = megatron(tmp_path / "run", curve(steps=30))
    lines = path.read_text().splitlines()
    lines[5] = re.sub(r" lm loss: \S+ \|", "", lines[5]).replace("skipped iterations:   0", "skipped iterations:   1")
    path.write_text("\n".join(lines))
    run = runs.read(path)
    assert (run.skipped, run.not_finite, run.missing) == (1, [], 1)


def test_real_files_of_the_trainer_are_read():
    """The Trainer's filter hides one NaN in a mean of ten steps. If all are NaN, it writes a loss of 0."""
    every = runs.read(HF / "fp32")
    assert (len(every.points), every.averaging, every.hides, every.decimals) == (200, "of one step", "", None)
    tens = runs.read(HF / "every-ten")
    assert (tens.interval, tens.averaging) == (10, "mean since the last log")
    assert "logging_nan_inf_filter" in tens.hides
    broken = runs.read(HF / "nan" / "trainer_state.json")
    assert broken.not_finite == list(range(60, 201, 10))
    assert broken.loss[:5] == tens.loss[:5]


def test_printed_lines_without_a_step_may_hide_a_nan(tmp_path):
    """The Trainer prints no step, so nothing says that it logged each one."""
    row = {"loss": "2.5", "grad_norm": "1.0", "learning_rate": "1e-4"}
    lines = [str(row | {"epoch": str(i / 100)}) for i in range(40)]
    (tmp_path / "out.log").write_text("\n".join(lines))
    run = runs.read(tmp_path / "out.log")
    assert "logging_nan_inf_filter" in run.hides and run.averaging != "of one step"


@pytest.mark.parametrize("every", [1, 10])
def test_filter_of_the_trainer_is_known_in_all_formats(every, tmp_path):
    """The Trainer logs train/epoch everywhere. A mean of ten steps may hide a NaN; a step that is logged alone becomes 0."""
    steps = range(every, 400 + every, every)
    columns = {
        "train/loss": [0.0 if s == 200 else 2.5 for s in steps],
        "train/grad_norm": [math.nan if s == 200 else 1.0 for s in steps],
        "train/epoch": [0.5] * len(steps),
    }
    rows = [{"train/global_step": s, **{k: v[i] for k, v in columns.items()}} for i, s in enumerate(steps)]
    (tmp_path / "history.json").write_text(json.dumps(rows))
    for run in (
        runs.read(tensorboard(tmp_path / "tb", list(columns), list(columns.values()), steps)),
        runs.read(tmp_path / "history.json"),
    ):
        assert run.not_finite == [200]
        assert ("logging_nan_inf_filter" in run.hides) == (every > 1)


BETWEEN = [
    ("step {s} loss {x:.5f}\n", "saved a checkpoint at step {s} in 3.2 s\n"),
    ("step {s} loss {x:.5f}\n", "step {s} memory 12.5 GB\n"),
    ("step {s} loss {x:.5f} lr 1e-3\n", "step {s} | val_loss 3.1 | lr 1e-3\n"),
    ("step {s} loss {x:.5f} lr 1e-3\n", "step {s} lr 1e-3\n"),
    ('{{"step": {s}, "loss": {x}, "lr": 0.1}}\n', '{{"step": {s}, "eval_loss": 3.1, "lr": 0.1}}\n'),
]


@pytest.mark.parametrize(("line", "between"), BETWEEN)
def test_lines_of_a_step_without_a_loss_are_no_nan(line, between, tmp_path):
    path = tmp_path / "run.log"
    losses = curve(steps=50).loss
    path.write_text("".join(line.format(s=10 * s, x=x) + between.format(s=10 * s + 5) for s, x in enumerate(losses)))
    run = runs.read(path)
    assert (run.points, run.not_finite) == (list(range(0, 500, 10)), []) and run.loss == pytest.approx(losses, abs=1e-5)


FILES = {
    "notes.txt": ("hello\n", "unknown format; its first line is 'hello'"),
    "run.log": ("", "unknown format; it is empty"),
    "run.bin": ("\x00\x01\x02", "binary .bin"),
    "no-loss.csv": ("step,accuracy\n1,0.5\n", "no loss; its keys are accuracy, step"),
    "no-steps.csv": ("loss,accuracy\n1,0.5\n", "no column of steps, samples or tokens"),
    "no-rows.csv": ("step,loss\n", "unknown format; its first line is 'step,loss'"),
    "word.csv": ("step,loss\none,2.5\n", "a step must be a number, not 'one'"),
    "half.csv": ("step,loss\n1,2.5\n1.5,2.4\n", "a step must be a whole number, not '1.5'"),
    "two.csv": ('"Step","a - train/loss","b - train/loss"\n1,2.5,2.6\n', "several runs in one table"),
    "golden.json": ('{"lm loss": {"step_interval": 1}}', "it is damaged or of another layout"),
    "state.json": ('{"log_history": null}', "log_history is no list"),
    "deep.json": ("[" * 100_000, "it is damaged or of another layout"),
    "titan.txt": (
        "".join(f"{s} 2.5\n" for s in range(30)) + "30 2.5 2.5\n",
        "steps and losses: '30 2.5 2.5' is not a step and a loss",
    ),
}
"""File -> its content, and what the message says of it."""


def refused(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    assert main(["import", str(path), "--out", str(path.parent / "imported")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and not (path.parent / "imported").exists()
    assert err.startswith(f"fp8parity: {path}"), err
    return str(err)


def biggest(path: Path) -> Path:
    """The file of a run that holds its losses."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return max(files, key=lambda p: ("loss" in p.name, p.stat().st_size))


@pytest.mark.parametrize("name", FILES)
def test_file_that_is_no_run_is_refused_in_one_line(name, tmp_path, capsys):
    (tmp_path / name).write_text(FILES[name][0])
    assert FILES[name][1] in refused(capsys, tmp_path / name)


def test_tensorboard_file_that_is_damaged_is_refused(tmp_path, capsys):
    """TensorBoard itself reads no further than a wrong byte, in silence. A file that ends early is a killed run."""
    writer = EventFileWriter(str(tmp_path / "tensor"))
    value = summary_pb2.Summary.Value(tag="lm loss", tensor=tensor_pb2.TensorProto(dtype=99))
    writer.add_event(event_pb2.Event(step=1, summary=summary_pb2.Summary(value=[value])))
    writer.close()
    assert "it is damaged or of another layout (TypeError" in refused(capsys, tmp_path / "tensor")
    events = biggest(megatron_tensorboard(tmp_path / "run", curve(steps=30)))
    content = bytearray(events.read_bytes())
    content[len(content) // 2] ^= 1
    events.write_bytes(content)
    assert "is damaged (" in refused(capsys, tmp_path / "run")
    content[len(content) // 2] ^= 1
    events.write_bytes(content[: len(content) // 8])
    assert 0 < len(runs.read(tmp_path / "run").loss) < 30


@pytest.mark.parametrize("format", WRITERS)
def test_file_that_ends_early_is_read_or_refused(format, tmp_path, capsys):
    path = WRITERS[format](tmp_path / "run", curve(steps=30))
    content = biggest(path).read_bytes()
    biggest(path).write_bytes(content[: len(content) // 2])
    code = main(["import", str(path), "--out", str(tmp_path / "imported")])
    err = capsys.readouterr().err
    assert (code, len(err.splitlines())) in ((0, 0), (2, 1)), err
    if code == 0:
        [found] = (tmp_path / "imported").glob("*.json")
        assert 0 < len(json.loads(found.read_text())["points"]) <= 30


NAMES = [".csv", ".tsv", ".jsonl", ".json", ".log", ".txt"]
WORDS = ["step", "loss", "lr", "grad_norm", ",", "\n", "1", "2.5", "nan", "-inf", "1e999", "{", "}", '"', ":", "[", "]",
         "iteration 5/ 10 |", "lm loss: 2", "log_history", "step_interval", "\ufeff", "\x00"]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from(WORDS), max_size=30), name=st.sampled_from(NAMES))
def test_any_text_is_a_run_or_one_line(words, name, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / f"run{name}"
    path.write_text("".join(words))
    error = ""
    try:
        assert runs.read(path).points
    except ValueError as refused:
        error = str(refused)
    assert not error or (str(path) in error and "\n" not in error)


Row = dict[str, Any]


def restarted(made: Table, again: Callable[[Row], Row] = lambda row: row, first: int = 300, last: int = 350) -> Table:
    """A run that crashed after step ``last`` and went on from step ``first``. ``again`` changes the repeated rows."""
    steps = [row["step"] for row in made]
    begin, end = steps.index(first), len(steps) - steps[::-1].index(last)
    return [*made[:end], *(again(dict(row)) for row in made[begin:end]), *made[end:]]


def lost(row: Row) -> Row:
    """Steps 310 to 319 have a NaN."""
    return row | ({"loss": None, "grad_norm": None} if 310 <= row["step"] < 320 else {})


def losses_alone(row: Row) -> Row:
    return {"step": row["step"], "loss": row["loss"]}


LOST = [*range(310, 320)]
READ: dict[str, tuple[Table, dict[str, object]]] = {
    "lost, then logged": ([*restarted(table(1), lost), *table(1)], {"empty": LOST, "replaced": 441}),
    "lost by the first process": (
        [lost(row) if i < 350 else row for i, row in enumerate(restarted(table(1)))],
        {"empty": LOST, "replaced": 41},
    ),
    "norms lost by the second process": (
        restarted(table(1), lambda row: row | ({"grad_norm": None} if 310 <= row["step"] < 320 else {})),
        {"empty": [], "norm_empty": LOST, "replaced": 51},
    ),
    "losses alone": (
        restarted([losses_alone(r) for r in table(1)], lambda row: row | {"loss": None}),
        {"missing": 51, "empty": [*range(300, 351)], "replaced": 51},
    ),
    "validations after the run": (
        [*table(1), *({"step": s, "lr": 1e-3, "val_loss": 3.0, "grad_norm": None} for s in (100, 200, 300))],
        {"norm_empty": [], "empty": [], "missing": 0},
    ),
    "a skipped step": (
        [r | {"skipped-iterations": int(r["step"] == 151)} for r in table(0, [151])],
        {"skipped": 1, "empty": [], "norm_empty": []},
    ),
}


@pytest.mark.parametrize("write", FORMATS[:2])
@pytest.mark.parametrize(("made", "expected"), READ.values(), ids=READ)
def test_rows_without_a_value_are_read(made, expected, write, tmp_path):
    run = runs.read(write(tmp_path / "a", made), restarts="replace")
    assert {name: getattr(run, name) for name in expected} == expected
    write_json(tmp_path / "kept.json", run)
    assert runs.read(tmp_path / "kept.json").model_dump_json() == run.model_dump_json()


@pytest.mark.parametrize("write", [megatron_tensorboard, deepspeed])
def test_two_folders_of_a_run_are_asked_for(write, tmp_path):
    first, second = (replace(curve(steps=50), first=at) for at in (1, 31))
    write(tmp_path / "run" / "a", first)
    write(tmp_path / "run" / "b", second)
    with pytest.raises(ValueError, match="such as .* name one of them, or say --restarts replace"):
        runs.read(tmp_path / "run")
    run = runs.read(tmp_path / "run", restarts="replace")
    assert len(run.points) == 80 and run.loss == pytest.approx([*first.loss[:30], *second.loss])


def test_rows_without_a_step_are_taken_by_run(tmp_path):
    text = "".join(f"{{'loss': {2 + i}, 'learning_rate': 0.1, 'epoch': {i / 100}}}\n" for i in range(40))
    (tmp_path / "a.log").write_text(text + text.replace("'loss': ", "'loss': 1"))
    with pytest.raises(ValueError, match="go back once, from 40 to 1: --run N if it holds 2 runs"):
        runs.read(tmp_path / "a.log")
    with pytest.raises(ValueError, match="no step that a restarted run logs again"):
        runs.read(tmp_path / "a.log", restarts="replace")
    run = runs.read(tmp_path / "a.log", run=2)
    assert (run.points, run.loss[0], "run 2 of 2 is taken" in run.taken) == ([*range(1, 41)], 12, True)


def test_rows_of_ranks_that_nothing_names_are_averaged_if_asked(tmp_path):
    """The last step was not logged by both."""
    lines = [f"step {s} loss {x}\n" for s in range(1, 41) for x in (2 + s, 4 + s)]
    (tmp_path / "a.log").write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"several rows of step 1 have different losses \(3, 5\): --rank mean"):
        runs.read(tmp_path / "a.log")
    run = runs.read(tmp_path / "a.log", rank="mean")
    assert (run.points, run.loss) == ([*range(1, 40)], [3.0 + s for s in range(1, 40)])
