"""Runs of other frameworks: every format is read as it was written, and what is not a run is refused in one sentence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from curves import HF, curve
from fp8parity import runs
from log_writers import (
    WRITERS,
    Curve,
    automodel,
    megatron,
    megatron_tensorboard,
    tensorboard,
)

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
