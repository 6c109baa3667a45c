"""What is missing in two logs: points of the tail, and values that were, or may have been, NaN."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import pytest
from curves import FORMATS, Table, changed, lines, noisy, pairs, run, table, verdict_on
from fp8parity.judging.pair import PairOptions, PairVerdict
from fp8parity.judging.pair.pairing import find_holes
from fp8parity.runs.run import Run

Row = dict[str, Any]
NONE = ["none: every point is there and finite"]


@pytest.fixture(params=FORMATS)
def verdict(request, tmp_path) -> Iterator[Callable[[Table, Table], PairVerdict]]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield partial(verdict_on, request.param, tmp_path)


NAN = [
    ({}, {"not_finite": [5, 9]}, "FP8's loss is not finite at step 5 (2 in all)", "fail"),
    ({"not_finite": [7]}, {}, "BF16's loss is not finite at step 7 (1 in all)", "inconclusive"),
    ({}, {"norm_not_finite": [6]}, "FP8's gradient norm is not finite at step 6 (1 in all)", "fail"),
    ({"norm_not_finite": [6]}, {}, "BF16's gradient norm is not finite at step 6 (1 in all)", "inconclusive"),
]


@pytest.mark.parametrize(("bf16", "fp8", "headline", "status"), NAN)
def test_nan_fails_for_fp8_and_is_inconclusive_for_bf16(bf16, fp8, headline, status):
    pair = run(noisy(), **bf16), run(noisy(), "fp8", **fp8)
    [found] = find_holes(pairs(pair))
    assert (found.headline, found.status, found.decisive) == (headline, status, True)
    assert [f.text for f in find_holes(pairs(pair, options=PairOptions(until=4)))] == NONE


def test_filter_may_hide_a_nan_unless_one_was_seen():
    plain, hiding = run(noisy()), run(noisy(), "fp8", hides="it does")
    for pair, count in (((plain, hiding), 1), ((hiding, plain), 1), ((hiding, hiding), 2)):
        found = find_holes(pairs(pair))
        assert [(f.status, f.decisive) for f in found] == [("inconclusive", False)] * count
        assert [f.text for f in find_holes(pairs(pair, options=PairOptions(unfiltered=True)))] == NONE
    seen = run(noisy(), "fp8", hides="it does", not_finite=[5])
    assert [f.status for f in find_holes(pairs((plain, seen)))] == ["fail"]


def without(losses: list[float], lost: Collection[int], **changes: Any) -> Run:
    kept = [at for at in range(1, len(losses) + 1) if at not in lost]
    return run([losses[at - 1] for at in kept], "fp8", points=kept, **changes)


@pytest.mark.parametrize(
    ("lost", "counts"),
    [(range(342, 361), None), (range(341, 361), "20 of 96"), (range(321, 400), "79 of 143"), (range(100, 200), None)],
)
def test_tail_may_lack_a_fifth_of_its_points(lost, counts):
    losses = noisy()
    for pair in ((run(losses), without(losses, lost)), (without(losses, lost), run(losses, "b"))):
        found = [f for f in find_holes(pairs(pair)) if f.decisive]
        assert [f.text.startswith(f"{counts} points of the tail") for f in found] == [True] * bool(counts)


LOST: dict[str, tuple[Collection[int], str]] = {
    "in the middle": (range(201, 317), "201 (116 in all)"),
    "a step": ([150], "150 (1 in all)"),
    "here and there in the tail": (range(300, 400, 3), "300 (34 in all)"),
}


@pytest.mark.parametrize("metric", ["loss", "grad_norm"])
@pytest.mark.parametrize(("lost", "says"), LOST.values(), ids=LOST)
def test_nan_written_as_nothing_is_found(lost, says, metric, verdict):
    """An empty cell or a null where the other run has a value."""
    name = {"loss": "loss", "grad_norm": "gradient norm"}[metric]
    v = verdict(table(), table(1, lost, metric))
    assert (v.status, v.headline) == ("fail", f"FP8's {name} is empty at step {says}: it was not finite")
    v = verdict(table(0, lost, metric), table(1))
    assert v.status == "inconclusive" and f"BF16's {name} is empty at step {says}" in lines(v, "holes")


def own_row(row: Row) -> Table:
    """Lightning's monitor of the learning rate writes rows of its own."""
    return [{"step": row["step"], "lr": row["lr"]}, {"step": row["step"], "loss": row["loss"]}]


def validation(row: Row) -> Table:
    """A validation has a row of the same step, with the learning rate."""
    return [row, *([{"step": row["step"], "lr": row["lr"], "val_loss": 3.0}] if row["step"] % 50 == 0 else [])]


@pytest.mark.parametrize("change", [own_row, validation])
def test_values_that_are_logged_in_other_rows_are_no_nan(change, verdict):
    v = verdict(changed(0, change), changed(1, change))
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)


TENTH = range(10, 401, 10)


def only(chaos: int, logged: Collection[int]) -> Table:
    return table(chaos, set(range(1, 401)) - set(logged), "grad_norm")


SPARSE = {
    "every tenth row of both": (only(0, TENTH), only(1, TENTH)),
    "the first rows and every tenth of FP8": (table(), only(1, [*range(1, 26), *TENTH])),
    "every tenth and every twentieth row": (only(0, TENTH), only(1, range(20, 401, 20))),
    "as the clock says": (only(0, range(7, 401, 7)), only(1, [round(5.3 * n) for n in range(1, 76)])),
    "the same rows are empty": (table(0, [3, 4, 150], "grad_norm"), table(1, [3, 4, 150], "grad_norm")),
    "empty in FP8": (table(), only(1, [])),
}


@pytest.mark.parametrize("pair", SPARSE.values(), ids=SPARSE)
def test_norms_that_are_logged_at_some_rows_are_no_nan(pair, verdict):
    v = verdict(*pair)
    assert (v.status, "empty" in lines(v, "holes")) == ("pass", False)
    assert "nan" not in lines(v, "gradient norm")
