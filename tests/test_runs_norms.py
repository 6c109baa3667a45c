"""Tables without a gradient norm at some steps: a NaN that was written as an empty cell or a null, or a norm that is logged less often."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import pytest
from curves import lines
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict
from fp8parity.records.storage import write_json
from run_tables import FORMATS, Table, as_csv, as_lines, as_list, changed, table, verdict_on

Row = dict[str, Any]


@pytest.fixture(params=FORMATS)
def verdict(request, tmp_path) -> Iterator[Callable[[Table, Table], PairVerdict]]:
    """No verdict warns of a slice of NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield partial(verdict_on, request.param, tmp_path)


def without(chaos: int, lost: Collection[int]) -> Table:
    """A run of which these steps have no gradient norm."""
    return [row | ({"grad_norm": None} if row["step"] in lost else {}) for row in table(chaos)]


def only(chaos: int, logged: Collection[int]) -> Table:
    """A run of which these steps alone have a gradient norm."""
    return without(chaos, set(range(1, 401)) - set(logged))


LOST = {
    "in the middle": (range(201, 317), "201 (116 in all)"),
    "a step": ([150], "150 (1 in all)"),
    "to the end": (range(301, 401), "301 (100 in all)"),
    "most of the run": (range(3, 401), "3 (398 in all)"),
    "all but the first": (range(2, 401), "2 (399 in all)"),
    "the last step": ([400], "400 (1 in all)"),
    "here and there in the tail": (range(300, 400, 3), "300 (34 in all)"),
}


@pytest.mark.parametrize(("lost", "says"), LOST.values(), ids=LOST)
def test_a_norm_that_was_written_as_nothing_is_red_for_fp8_and_undecided_for_bf16(lost, says, verdict):
    v = verdict(table(), without(1, lost))
    assert (v.status, v.headline) == ("fail", f"FP8's gradient norm is empty at step {says}: it was not finite")
    v = verdict(without(0, lost), table(1))
    assert (v.status, v.headline) == (
        "inconclusive",
        f"BF16's gradient norm is empty at step {says}: it was not finite",
    )


TENTH = range(10, 401, 10)


def sound(bf16: Table, fp8: Table) -> tuple[Table, Table]:
    return bf16, fp8


SOUND = {
    "every tenth row of both": sound(only(0, TENTH), only(1, TENTH)),
    "every tenth row of FP8": sound(table(), only(1, TENTH)),
    "every tenth row of FP8, the first and the last": sound(table(), only(1, [1, *TENTH, 397, 398, 400])),
    "the first rows and every tenth row of FP8": sound(table(), only(1, [*range(1, 26), *TENTH])),
    "every tenth row of BF16": sound(only(0, TENTH), table(1)),
    "every tenth and every twentieth row": sound(only(0, TENTH), only(1, range(20, 401, 20))),
    "other rows after a restart": sound(only(0, TENTH), only(1, [*range(10, 201, 10), *range(205, 401, 10)])),
    "other rows": sound(only(0, TENTH), only(1, range(5, 401, 10))),
    "as the clock says": sound(only(0, range(7, 401, 7)), only(1, [round(5.3 * n) for n in range(1, 76)])),
    "every second row of FP8": sound(table(), only(1, range(2, 401, 2))),
    "the first half of both": sound(only(0, range(1, 201)), only(1, range(1, 201))),
    "the same rows are empty": sound(without(0, [3, 4, 150]), without(1, [3, 4, 150])),
    "empty in both": sound(only(0, []), only(1, [])),
    "empty in FP8": sound(table(), only(1, [])),
    "empty in BF16": sound(only(0, []), table(1)),
    "the first row": sound(table(), without(1, [1])),
}


@pytest.mark.parametrize("pair", SOUND.values(), ids=SOUND)
def test_a_norm_that_is_logged_at_some_rows_stays_green(pair, verdict):
    v = verdict(*pair)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)
    assert "nan" not in lines(v, "gradient norm")


def apart(row: Row) -> Table:
    """Each metric has rows of its own."""
    return [{"step": row["step"], name: row[name]} for name in ("lr", "grad_norm", "loss")]


def after(row: Row) -> Table:
    return apart(row)[::-1]


def between(row: Row) -> Table:
    """The norm of a step has another number than its loss."""
    at = 50 * row["step"]
    return [{"step": at - 1, "grad_norm": row["grad_norm"]}, {"step": at, "loss": row["loss"], "lr": row["lr"]}]


def validation(row: Row) -> Table:
    """A validation between the rows of the training has the loss of its own, and no norm."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 0 else [])]


@pytest.mark.parametrize("change", [apart, after, between, validation])
def test_a_norm_that_lies_in_other_rows_stays_green(change, verdict):
    v = verdict(changed(0, change), changed(1, change))
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


@pytest.mark.parametrize("change", [apart, after, validation])
@pytest.mark.parametrize("write", [as_csv, as_lines, as_list])
def test_a_lost_norm_among_such_rows_is_red(change, write, tmp_path):
    made = [
        row | ({"grad_norm": None} if row["step"] == 151 and "grad_norm" in row else {}) for row in changed(1, change)
    ]
    v = verdict_on(write, tmp_path, changed(0, change), made)
    assert (v.status, v.headline) == ("fail", "FP8's gradient norm is empty at step 151 (1 in all): it was not finite")


def test_a_lost_norm_of_every_tenth_row_is_red(verdict):
    v = verdict(only(0, TENTH), only(1, set(TENTH) - {150, 160}))
    assert (v.status, v.headline) == ("fail", "FP8's gradient norm is empty at step 150 (2 in all): it was not finite")


def test_a_lost_norm_is_undecided_where_both_runs_lost_some(verdict):
    v = verdict(without(0, [3, 90]), without(1, [6, 90]))
    assert (v.status, v.headline) == (
        "inconclusive",
        "FP8's gradient norm is empty at step 6 (1 in all): perhaps it was not finite",
    )


def restarted(first: Table, again: Table) -> Table:
    """The first process ended after step 350, the second one began at step 300."""
    return [*first[:350], *again[299:]]


def test_the_last_norm_of_a_step_that_was_logged_again_counts(verdict):
    v = verdict(table(), restarted(table(1), without(1, range(310, 330))))
    assert (v.status, v.headline) == ("fail", "FP8's gradient norm is empty at step 310 (20 in all): it was not finite")
    assert verdict(table(), restarted(without(1, range(310, 330)), table(1))).status == "pass"


def test_validations_of_checkpoints_after_the_run_take_no_norm_back(tmp_path):
    """A second process validates every hundredth step."""
    rows: Table = [{"step": at, "lr": 1e-3, "val_loss": 3.0, "grad_norm": None} for at in (100, 200, 300)]
    run = runs.read(as_csv(tmp_path / "a", [*table(1), *rows]))
    assert (run.norm_empty, run.empty, len(run.loss), min(run.grad_norm) > 0) == ([], [], 400, True)


def test_an_empty_norm_of_the_first_process_counts_no_more(tmp_path):
    assert runs.read(as_csv(tmp_path / "a", restarted(without(1, range(310, 330)), table(1)))).norm_empty == []


def test_the_first_row_of_a_process_may_have_no_norm_yet(verdict):
    assert verdict(table(), restarted(table(1), without(1, [300]))).status == "pass"


@pytest.mark.parametrize("change", [apart, after])
def test_a_restarted_run_whose_norms_have_rows_of_their_own_stays_green(change, verdict):
    split = [change(row) for row in table(1)]
    v = verdict(changed(0, change), [row for rows in restarted(split, split) for row in rows])
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_step_that_the_optimizer_skipped_has_no_norm(skipped, tmp_path):
    made = [row | {"skipped-iterations": 0} for row in without(1, [151])]
    made[150]["skipped-iterations"] = skipped
    run = runs.read(as_csv(tmp_path / "a", made))
    assert (run.skipped, run.norm_empty) == (skipped, [] if skipped else [151])


@pytest.mark.parametrize("write", [as_csv, as_lines])
def test_an_imported_run_keeps_its_empty_norms(write, tmp_path):
    run = runs.read(write(tmp_path / "a", without(1, [150, 400])))
    assert run.norm_empty == [150, 400] and 150 in run.points
    write_json(tmp_path / "kept.json", run)
    assert runs.read(tmp_path / "kept.json").model_dump_json() == run.model_dump_json()


def test_a_row_without_the_key_or_without_a_loss_has_no_empty_norm(tmp_path):
    made = without(1, [160])
    made[150].pop("grad_norm")
    made[159]["loss"] = None
    assert runs.read(as_lines(tmp_path / "a", made)).norm_empty == []
