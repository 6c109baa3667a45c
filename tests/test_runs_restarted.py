"""Tables of restarted runs: steps that were logged again, some of them without a loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from curves import lines
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict
from run_tables import FORMATS, Table, as_csv, as_lines, changed, table, verdict_on

Row = dict[str, Any]


@pytest.fixture(params=FORMATS)
def verdict(request, tmp_path) -> Callable[[Table, Table], PairVerdict]:
    return partial(verdict_on, request.param, tmp_path)


def restarted(made: Table, again: Callable[[Row], Row] = lambda row: row, first: int = 300, last: int = 350) -> Table:
    """A run that crashed after step ``last`` and went on from step ``first``. ``again`` changes the rows that were logged twice."""
    steps = [row["step"] for row in made]
    begin, end = steps.index(first), len(steps) - steps[::-1].index(last)
    return [*made[:end], *(again(dict(row)) for row in made[begin:end]), *made[end:]]


def lost(row: Row) -> Row:
    """Steps 310 to 319 of the second process have a NaN."""
    return row | ({"loss": None, "grad_norm": None} if 310 <= row["step"] < 320 else {})


def test_a_nan_of_the_second_process_hides_behind_no_loss_of_the_first(verdict):
    v = verdict(table(), restarted(table(1), lost))
    assert (v.status, v.headline) == ("fail", "FP8's loss is empty at step 310 (10 in all): it was not finite")
    assert "FP8: 51 points logged again after a restart" in lines(v, "holes")
    v = verdict(restarted(table(), lost), table(1))
    assert (v.status, v.headline) == ("inconclusive", "BF16's loss is empty at step 310 (10 in all): it was not finite")


def test_a_nan_of_the_first_process_counts_no_more(verdict):
    made = restarted(table(1))
    for row in made[309:319]:
        row["loss"] = None
    v = verdict(table(), made)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def test_a_nan_of_both_processes_is_red(verdict):
    v = verdict(table(), restarted([lost(row) for row in table(1)]))
    assert (v.status, v.headline) == ("fail", "FP8's loss is empty at step 310 (10 in all): it was not finite")


def test_the_last_of_three_processes_counts(tmp_path):
    once, all_lost = restarted(table(1), lost), [lost(row) for row in table(1)]
    assert runs.read(as_csv(tmp_path / "sound", [*once, *table(1)])).empty == []
    assert runs.read(as_csv(tmp_path / "lost", [*once, *all_lost])).empty == list(range(310, 320))
    assert runs.read(as_csv(tmp_path / "lost", [*once, *all_lost])).replaced == 51 + 390


def validation(row: Row) -> Table:
    """A validation after each 50 steps has a row of its own, with the learning rate."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 0 else [])]


def monitor(row: Row) -> Table:
    """The learning rate has rows of its own after those of the loss, which also has it."""
    return [row, {"step": row["step"], "lr": row["lr"]}]


def before(row: Row) -> Table:
    return monitor(row)[::-1]


def apart(row: Row) -> Table:
    """Each metric has rows of its own."""
    return [{"step": row["step"], name: row[name]} for name in ("lr", "loss", "grad_norm")]


def late(row: Row) -> Table:
    """The row of a validation that runs beside the training comes two steps later."""
    return [row, *([{"step": row["step"] - 2, "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 2 else [])]


@pytest.mark.parametrize("change", [validation, monitor, before, apart, late])
@pytest.mark.parametrize("whole", [True, False])
def test_a_restarted_run_with_rows_of_other_metrics_stays_green(change, whole, verdict):
    """The second process begins with the rows of its first step, or with the last row of it, as a validation before the first step is."""
    made = restarted(changed(1, change))
    if not whole:
        at = next(i for i, row in enumerate(made) if i and row["step"] == 300 and made[i - 1]["step"] == 350)
        while made[at + 1]["step"] == 300:
            del made[at]
    v = verdict(changed(0, change), made)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def test_a_nan_among_the_rows_of_a_validation_is_red(verdict):
    made = restarted(changed(1, validation), lambda row: row if "val_loss" in row else lost(row))
    v = verdict(changed(0, validation), made)
    assert (v.status, v.headline) == ("fail", "FP8's loss is empty at step 310 (10 in all): it was not finite")


def beside(row: Row) -> Row:
    """The row of a loss has that of the validation, too."""
    return row | ({"val_loss": 3.0} if row["step"] % 50 == 0 else {})


@pytest.mark.parametrize("change", [lambda row: row, beside], ids=["never beside a loss", "beside a loss"])
def test_a_validation_before_the_first_step_of_the_second_process_takes_no_loss_back(change, verdict):
    """The first process had no such row."""
    made = changed(1, change)
    v = verdict(changed(0, change), [*made[:350], {"step": 300, "lr": made[299]["lr"], "val_loss": 3.0}, *made[300:]])
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def kept(row: Row) -> Row:
    """Of the table, a user kept the loss and the learning rate."""
    return {"step": row["step"], "loss": row.get("loss"), "lr": row["lr"]}


def test_an_export_without_the_columns_of_the_validation_stays_green(verdict):
    """Nothing tells the rows of a validation from those of a NaN but that the first process has such rows beside its losses."""
    made = [kept(row) for row in changed(1, validation)]
    made = [*made[:357], kept(table(1)[299]) | {"loss": None}, *made[306:]]
    v = verdict([kept(row) for row in changed(0, validation)], made)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def test_a_lost_loss_in_a_table_of_losses_alone_is_a_missing_point(tmp_path):
    made = restarted(
        [{"step": row["step"], "loss": row["loss"]} for row in table(1)],
        lambda row: {"step": row["step"], "loss": None},
    )
    for write in (as_csv, as_lines):
        run = runs.read(write(tmp_path / "a", made))
        assert (run.missing, run.empty, run.replaced, len(run.loss)) == (51, [], 51, 349)


def test_a_row_without_the_key_of_the_loss_is_no_loss(tmp_path):
    made = restarted(table(1), lambda row: {name: row[name] for name in ("step", "lr", "grad_norm")})
    run = runs.read(as_lines(tmp_path / "a", made))
    assert (run.missing, run.empty, run.replaced, len(run.loss)) == (0, [], 0, 400)
    assert not any(map(math.isnan, run.loss))
