"""Tables of runs: steps that were logged again after a restart, and rows and cells without a loss or a norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from curves import FORMATS, Table, as_lines, changed, lines, table, verdict_on
from fp8parity import runs
from fp8parity.judging.pair import PairVerdict
from fp8parity.records.storage import write_json

Row = dict[str, Any]


@pytest.fixture(params=FORMATS)
def verdict(request, tmp_path) -> Callable[[Table, Table], PairVerdict]:
    return partial(verdict_on, request.param, tmp_path)


def restarted(made: Table, again: Callable[[Row], Row] = lambda row: row, first: int = 300, last: int = 350) -> Table:
    """A run that crashed after step ``last`` and went on from step ``first``. ``again`` changes the repeated rows."""
    steps = [row["step"] for row in made]
    begin, end = steps.index(first), len(steps) - steps[::-1].index(last)
    return [*made[:end], *(again(dict(row)) for row in made[begin:end]), *made[end:]]


def lost(row: Row) -> Row:
    """Steps 310 to 319 have a NaN."""
    return row | ({"loss": None, "grad_norm": None} if 310 <= row["step"] < 320 else {})


def lost_norm(row: Row) -> Row:
    return row | ({"grad_norm": None} if 310 <= row["step"] < 320 else {})


FIRST_LOST = [lost(row) if i < 350 else row for i, row in enumerate(restarted(table(1)))]
RESTARTS = {
    "a NaN of FP8's second process": (table(), restarted(table(1), lost), "fail", "FP8's loss is empty at step 310"),
    "one of BF16's": (restarted(table(), lost), table(1), "inconclusive", "BF16's loss is empty at step 310"),
    "a NaN of the first process": (table(), FIRST_LOST, "pass", ""),
    "a NaN of both": (table(), restarted([lost(r) for r in table(1)]), "fail", "FP8's loss is empty at step 310"),
    "a norm of the second process": (table(), restarted(table(1), lost_norm), "fail", "FP8's gradient norm is empty"),
    "the first norm": (table(), restarted(table(1), lambda r: lost_norm(r) if r["step"] == 300 else r), "pass", ""),
}


@pytest.mark.parametrize(("bf16", "fp8", "status", "says"), RESTARTS.values(), ids=RESTARTS)
def test_last_process_of_a_restarted_run_counts(bf16, fp8, status, says, verdict):
    v = verdict(bf16, fp8)
    assert v.status == status and says in v.headline
    assert "points logged again after a restart" in lines(v, "holes") and ("empty" in v.headline) == bool(says)


def validation(row: Row) -> Table:
    """A validation after each 50 steps has a row of its own, with the learning rate."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 0 else [])]


def monitor(row: Row) -> Table:
    """The learning rate has rows of its own after those of the loss, which also has it."""
    return [row, {"step": row["step"], "lr": row["lr"]}]


def each_metric(row: Row) -> Table:
    return [{"step": row["step"], name: row[name]} for name in ("lr", "loss", "grad_norm")]


def late(row: Row) -> Table:
    """The row of a validation that runs next to the training comes two steps later."""
    return [row, *([{"step": row["step"] - 2, "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 2 else [])]


@pytest.mark.parametrize("change", [validation, monitor, lambda row: monitor(row)[::-1], each_metric, late])
@pytest.mark.parametrize("whole", [True, False])
def test_rows_of_other_metrics_take_no_loss_back(change, whole, verdict):
    """The second process begins with all rows of its first step, or with the last one."""
    made = restarted(changed(1, change))
    if not whole:
        at = next(i for i, row in enumerate(made) if i and row["step"] == 300 and made[i - 1]["step"] == 350)
        while made[at + 1]["step"] == 300:
            del made[at]
    v = verdict(changed(0, change), made)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def test_nan_among_rows_of_a_validation_fails(verdict):
    made = restarted(changed(1, validation), lambda row: row if "val_loss" in row else lost(row))
    v = verdict(changed(0, validation), made)
    assert (v.status, v.headline) == ("fail", "FP8's loss is empty at step 310 (10 in all): it was not finite")


@pytest.mark.parametrize("with_loss", [False, True])
def test_validation_before_the_first_repeated_step_is_no_nan(with_loss, verdict):
    def change(row: Row) -> Row:
        return row | ({"val_loss": 3.0} if with_loss and row["step"] % 50 == 0 else {})

    made = changed(1, change)
    v = verdict(changed(0, change), [*made[:350], {"step": 300, "lr": made[299]["lr"], "val_loss": 3.0}, *made[300:]])
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


def test_export_without_the_columns_of_a_validation_passes(verdict):
    """The first process has such rows with its losses, so they are no NaN."""

    def kept(row: Row) -> Row:
        return {"step": row["step"], "loss": row.get("loss"), "lr": row["lr"]}

    made = [kept(row) for row in changed(1, validation)]
    made = [*made[:357], kept(table(1)[299]) | {"loss": None}, *made[306:]]
    assert verdict([kept(row) for row in changed(0, validation)], made).status == "pass"


def losses_alone(row: Row) -> Row:
    return {"step": row["step"], "loss": row["loss"]}


READ: dict[str, tuple[Table, dict[str, object]]] = {
    "lost twice": ([*restarted(table(1), lost), *map(lost, table(1))], {"empty": [*range(310, 320)], "replaced": 441}),
    "lost, then logged": ([*restarted(table(1), lost), *table(1)], {"empty": [], "replaced": 441}),
    "losses alone": (
        restarted([losses_alone(r) for r in table(1)], lambda row: row | {"loss": None}),
        {"missing": 51, "empty": [], "replaced": 51},
    ),
    "an empty loss": (table(1, [150, 400]), {"empty": [150, 400], "missing": 1}),
    "an empty norm": (table(1, [150, 400], "grad_norm"), {"norm_empty": [150, 400], "missing": 0}),
    "an empty norm of the first process": (
        [*table(1, range(310, 330), "grad_norm")[:350], *table(1)[299:]],
        {"norm_empty": []},
    ),
    "validations after the run": (
        [*table(1), *({"step": s, "lr": 1e-3, "val_loss": 3.0, "grad_norm": None} for s in (100, 200, 300))],
        {"norm_empty": [], "empty": [], "missing": 0},
    ),
    "a row without other metrics": (
        [{"step": 151, "loss": None} if r["step"] == 151 else r for r in table()],
        {"missing": 1, "empty": []},
    ),
    "a skipped step": (
        [r | {"skipped-iterations": int(r["step"] == 151)} for r in table(0, [151])],
        {"skipped": 1, "empty": [], "norm_empty": []},
    ),
    "a step that was not skipped": (
        [r | {"skipped-iterations": 0} for r in table(0, [151])],
        {"skipped": 0, "empty": [151]},
    ),
}


@pytest.mark.parametrize("write", FORMATS[:2])
@pytest.mark.parametrize(("made", "expected"), READ.values(), ids=READ)
def test_rows_without_a_value_are_read(made, expected, write, tmp_path):
    run = runs.read(write(tmp_path / "a", made))
    assert {name: getattr(run, name) for name in expected} == expected
    write_json(tmp_path / "kept.json", run)
    assert runs.read(tmp_path / "kept.json").model_dump_json() == run.model_dump_json()


def test_missing_keys_are_no_empty_values(tmp_path):
    """W&B may know a key that no row of this run has. The first known name would be it."""
    run = runs.read(as_lines(tmp_path / "a", [row | {"train/loss": None, "global_step": None} for row in table()]))
    assert (len(run.loss), run.empty) == (400, [])
    made = table(1, [160])
    made[150].pop("grad_norm")
    assert runs.read(as_lines(tmp_path / "b", made)).norm_empty == []
    again = restarted(table(1), lambda row: {name: row[name] for name in ("step", "lr", "grad_norm")})
    run = runs.read(as_lines(tmp_path / "c", again))
    assert (run.missing, run.empty, run.replaced, len(run.loss)) == (0, [], 0, 400)
    assert not any(map(math.isnan, run.loss))
