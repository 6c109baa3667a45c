"""Tables without a loss at some steps: a NaN that was written as an empty cell or a null, or metrics that were logged in other rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from curves import lines
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict, judge
from fp8parity.judging.pair.finding import Asked
from run_tables import FORMATS, Table, as_csv, as_lines, as_list, changed, table, verdict_on


@pytest.fixture(params=FORMATS)
def verdict(request, tmp_path) -> Callable[[Table, Table], PairVerdict]:
    return partial(verdict_on, request.param, tmp_path)


LOST = {
    "in the middle": (range(201, 317), True, "201 (116 in all)"),
    "a step": ([150], False, "150 (1 in all)"),
    "to the end": (range(301, 401), True, "301 (100 in all)"),
    "most of the run": (range(151, 401), True, "151 (250 in all)"),
    "the last step": ([400], False, "400 (1 in all)"),
    "here and there in the tail": (range(300, 400, 3), True, "300 (34 in all)"),
}


@pytest.mark.parametrize(("lost", "norm", "says"), LOST.values(), ids=LOST)
def test_a_nan_that_was_written_as_nothing_is_red_for_fp8_and_undecided_for_bf16(lost, norm, says, verdict):
    v = verdict(table(), table(1, lost, norm))
    assert (v.status, v.headline) == ("fail", f"FP8's loss is empty at step {says}: it was not finite")
    v = verdict(table(0, lost, norm), table(1))
    assert v.status == "inconclusive" and f"BF16's loss is empty at step {says}" in lines(v, "holes")


def own_row(row: dict[str, Any]) -> Table:
    """Lightning's monitor of the learning rate writes rows of its own."""
    return [{"step": row["step"], "lr": row["lr"]}, {"step": row["step"], "loss": row["loss"]}]


def between(row: dict[str, Any]) -> Table:
    """The loss of a step is logged after it, so its row has another number."""
    at = 50 * row["step"]
    return [{"step": at - 1, "loss": row["loss"]}, {"step": at, "lr": row["lr"]}]


def seldom(row: dict[str, Any]) -> dict[str, Any]:
    """The loss is logged every second step, its learning rate every step."""
    return row | ({"loss": None} if row["step"] % 2 else {})


def validation(row: dict[str, Any]) -> Table:
    """A validation has a row of the same step, with the learning rate."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 100 == 0 else [])]


def counted(row: dict[str, Any]) -> Table:
    """W&B counts calls: a validation after each 99 rows has a number of its own."""
    at = row["step"] + (row["step"] - 1) // 99
    return [
        row | {"step": at},
        *([{"step": at + 1, "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 99 == 0 else []),
    ]


@pytest.mark.parametrize("change", [own_row, between, seldom, validation, counted])
def test_a_sound_run_whose_losses_lie_in_other_rows_stays_green(change, verdict):
    v = verdict(changed(0, change), changed(1, change))
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


@pytest.mark.parametrize("write", [as_csv, as_list])
def test_a_lost_loss_among_rows_of_other_metrics_is_undecided(write, tmp_path):
    made = changed(1, counted)
    made[150]["loss"] = None
    v = judge(
        [runs.read(write(tmp_path / "a", changed(0, counted)))], [runs.read(write(tmp_path / "b", made))], Asked()
    )
    assert (v.status, v.headline) == (
        "inconclusive",
        "FP8's loss is empty at step 151 (1 in all): perhaps it was not finite",
    )


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_step_that_the_optimizer_skipped_has_no_loss(skipped, tmp_path):
    made = [row | {"skipped-iterations": 0} for row in table()]
    made[150] |= {"loss": None, "skipped-iterations": skipped}
    run = runs.read(as_csv(tmp_path / "a", made))
    assert (run.skipped, run.empty) == (skipped, [] if skipped else [151])


def test_a_row_without_other_metrics_or_without_the_key_is_a_missing_point(tmp_path):
    made = table()
    made[150] = {"step": 151, "loss": None}
    made[160] = {"step": 161, "lr": 1e-3, "grad_norm": 1.0}
    run = runs.read(as_lines(tmp_path / "a", made))
    assert (run.missing, run.empty, run.not_finite) == (2, [], [])


def test_a_key_that_is_always_null_is_no_loss(tmp_path):
    """W&B may know a key that no row of this run has. The first known name would be it."""
    run = runs.read(as_lines(tmp_path / "a", [row | {"train/loss": None, "global_step": None} for row in table()]))
    assert (len(run.loss), run.empty) == (400, [])


@pytest.mark.parametrize("write", [as_csv, as_lines])
def test_an_imported_run_keeps_its_empty_losses(write, tmp_path):
    run = runs.read(write(tmp_path / "a", table(1, [150, 400])))
    assert run.empty == [150, 400] and 150 not in run.points
    assert type(run).model_validate_json(run.model_dump_json()) == run
